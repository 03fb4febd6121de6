#!/usr/bin/env bash
# Usage: bash results/paper_size/run.sh BIN WORK SECONDS SEEDS [FAIRSEQ-TRAIN OPTIONS]
#
# Trains, side by side on one GPU, layer norm and batch norm on fairseq's batches and on batches mixed
# from 16 buckets of lengths, at the paper's size and by the authors' recipe (6 + 6 layers, d = 512), with
# the schedule of results/sampler: 20,000 updates with a learning rate that falls to 0. Stops all after
# SECONDS; called again it goes on from the last checkpoints. Measures and translates what is finished.
#
#   BIN       the data of `rbn prepare iwslt14`, data/iwslt14/bin
#   WORK      where trainings are kept; what is committed goes to results/paper_size/, by WORK's last name
#   SEEDS     such as 1, or "1 2": all are trained side by side
#   SAMPLERS  in the environment: sorted or mixing16, where not both
#   OPTIONS   such as --fp16; or --cpu --max-update 6 --total-num-update 6 to try it on a CPU
set -euo pipefail
bin=$(realpath "$1") seconds=$3 seeds=$4
mkdir -p "$2" && work=$(realpath "$2")
shift 4
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

run() { # NAME OPTIONS...
    local out=$work/$1
    shift
    mkdir -p "$out"
    # In the foreground Ctrl-C reaches it, too.
    timeout --foreground --signal INT "$seconds" rbn train "$bin" --recipe iwslt14_post --save-dir "$out" \
        --lr-scheduler polynomial_decay --warmup-updates 1500 --total-num-update 20000 --max-update 20000 \
        --save-interval-updates 500 --keep-interval-updates 1 --keep-last-epochs 1 --tid-batches 50 \
        --log-interval 50 --log-format json --no-progress-bar "$@" >/dev/null ||
        tail -n 1 "$out/train.log" | grep -q "done training" # ended, and was stopped on its way out
    cd "$out"
    if [[ $out == */bn-* && ! -f cost.jsonl ]]; then
        rbn cost checkpoint_last.pt --batches 50 --json cost.jsonl
    fi
    if [[ ! -f score.json ]]; then
        rbn generate "$bin" --path checkpoint_last.pt --beam 5 --max-len-a 1 --max-len-b 50 --remove-bpe \
            --max-tokens 24000 "${place[@]}" >test.txt
        rbn score test.txt --lang en --json score.json
    fi
}

samplers=${SAMPLERS:-sorted mixing16}
for sampler in $samplers; do
    [[ $sampler =~ ^(sorted|mixing16)$ ]] || { echo "SAMPLERS: sorted or mixing16, not '$sampler'" >&2 && exit 2; }
done
place=()
[[ " $* " != *" --cpu "* ]] || place=(--cpu)
for seed in $seeds; do
    for sampler in $samplers; do
        mixing=1
        [[ $sampler == sorted ]] || mixing=16
        for norm in ln bn; do
            run "$norm-$sampler-seed$seed" --norm "$norm" --seed "$seed" --length-mixing "$mixing" "$@" &
        done
    done
done
for job in $(jobs -p); do
    wait "$job" || echo "stopped after $seconds seconds, or failed: see train.log below $work" >&2
done
bash results/keep.sh "results/paper_size/${work##*/}" "$work"/*-seed*
