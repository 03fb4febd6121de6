#!/usr/bin/env bash
# Usage: bash results/ladder/run.sh TEXT BIN WORK SEED...
#
# Trains, for each seed, layer norm, batch norm with 16 bins of lengths, and RBN with the authors'
# weights (4 + 2 layers, 4 epochs), and measures them. TEXT is the directory of the same name of
# results/iwslt14_subset/run.sh, and BIN the data that it makes; WORK is for checkpoints. Takes about
# an hour and a half a seed on one core, and goes on where it was cut off.
set -euo pipefail
text=$(realpath "$1") bin=$(realpath "$2")
mkdir -p "$3" && work=$(realpath "$3")
shift 3
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
export OMP_NUM_THREADS=1
export MALLOC_MMAP_THRESHOLD_=2000000000 MALLOC_TRIM_THRESHOLD_=4000000000
export MALLOC_TOP_PAD_=200000000

train() { # NAME OPTIONS...
    local out=$work/$1
    shift
    [[ -f $out/checkpoint4.pt ]] && return
    mkdir -p "$out"
    rbn train "$bin" --arch rbn_transformer_tiny --encoder-layers 4 --share-all-embeddings \
        --dropout 0.1 --criterion label_smoothed_cross_entropy_rbn --label-smoothing 0.1 \
        --optimizer adam --adam-betas '(0.9, 0.98)' \
        --lr 0.002 --lr-scheduler inverse_sqrt --warmup-updates 1000 \
        --max-tokens 2000 --max-epoch 4 --cpu --num-workers 0 \
        --no-progress-bar --log-interval 100 --save-dir "$out" "$@" >>"$out/train.log"
}

cost() { # NAME CHECKPOINT...
    local run=$work/$1
    shift
    [[ -f $run/cost.jsonl ]] || (cd "$run" && rbn cost "$@" --output cost.jsonl)
}

translate() { # NAME OUTPUT OPTIONS...
    local run=$work/$1 out=$work/$1/$2
    shift 2
    [[ -f $out.json ]] && return
    rbn generate "$bin" --path "$run/checkpoint4.pt" --cpu --beam 5 --lenpen 1 --max-len-a 1 \
        --max-len-b 50 --remove-bpe --max-tokens 6000 --num-workers 0 "$@" >"$out.txt"
    rbn score "$out.txt" --lang en --reference "$text/test.en" --output "$out.json"
}

batch=(--norm-encoder batch --tid-batches 100)
for seed in "$@"; do
    train "ln-seed$seed" --seed "$seed"
    train "bn-seed$seed" --seed "$seed" "${batch[@]}" --norm-batch-length-bins 16
    train "rbn-seed$seed" --seed "$seed" "${batch[@]}" --norm-batch-eps-mode clamp \
        --rbn-mean-weight 60 --rbn-convention official
    cost "bn-seed$seed" checkpoint{1..4}.pt
    cost "rbn-seed$seed" checkpoint4.pt
    translate "ln-seed$seed" score
    translate "bn-seed$seed" score
    translate "bn-seed$seed" global --model-overrides "{'norm_batch_length_bins': 1}"
    translate "rbn-seed$seed" score
done

bash results/keep.sh results/ladder/runs "$work"/{ln,bn,rbn}-seed[0-9]
for scores in "$work"/bn-seed[0-9]/global.json; do
    cp "$scores" "results/ladder/runs/$(basename "$(dirname "$scores")")"
done
rbn report results/ladder/runs/* --out "$work/report" \
    --title "IWSLT14 De-En, 48.8k-pair subset, three seeds"
cp "$work"/report/figures/{figure1,figure3_right,figure4,cost,cost_by_epoch}.png results/ladder
