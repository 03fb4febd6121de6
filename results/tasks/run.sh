#!/usr/bin/env bash
# Usage: bash results/tasks/run.sh TASK BIN WORK SEED...
#
# Trains layer norm, batch norm and RBN on a task with each of its samplers, two trainings at a time, a
# core each, and measures them. BIN is the data that `rbn prepare TASK` makes; WORK is for checkpoints. Goes
# on where it was cut off.
#
#   ptb   a language model of 3 layers, width 128, 2,970 updates: blocks of 32 tokens; sentences in batches of
#         like length; the same sentences in batches of 16 lengths. About an hour and a half a seed.
set -euo pipefail
task=$1 bin=$(realpath "$2")
mkdir -p "$3" && work=$(realpath "$3")
shift 3
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
export OMP_NUM_THREADS=1
export MALLOC_MMAP_THRESHOLD_=2000000000 MALLOC_TRIM_THRESHOLD_=4000000000

train() { # NAME OPTIONS...
    local out=$work/$1
    shift
    if ! grep -qs "done training" "$out/train.log"; then
        mkdir -p "$out"
        rbn train "$bin" --optimizer adam --adam-betas '(0.9, 0.98)' --max-tokens 2000 \
            --lr-scheduler polynomial_decay --max-update "$updates" --total-num-update "$updates" \
            --tid-batches 100 --conditioning-interval 0 --keep-last-epochs 1 --cpu --num-workers 0 \
            --no-progress-bar --log-interval 100 --save-dir "$out" "$@" >/dev/null
    fi
    [[ -f $out/score.json ]] ||
        rbn validate "$bin" --path "$out/checkpoint_best.pt" --valid-subset test --cpu --num-workers 0 \
            --max-tokens 4000 --json "$out/score.json" >/dev/null
    [[ $out == */ln-* || -f $out/cost.jsonl ]] ||
        (cd "$out" && rbn cost checkpoint_last.pt --json cost.jsonl >/dev/null)
}

norms() { # SIDE SAMPLER SEED OPTIONS...
    local side=$1 name=$2-seed$3 options=(--seed "$3" "${@:4}")
    train "ln-$name" "${options[@]}" &
    train "bn-$name" "${options[@]}" "--norm-$side" batch
    wait $!
    train "rbn-$name" "${options[@]}" "--norm-$side" batch --rbn-mean-weight 60 \
        --norm-batch-eps-mode clamp --rbn-convention official
}

for seed in "$@"; do
    case $task in
        ptb)
            updates=2970 # 6 epochs of sentences, 5.7 of blocks
            model=(
                --arch rbn_transformer_lm_tiny --decoder-layers 3 --decoder-ffn-embed-dim 512
                --share-decoder-input-output-embed --dropout 0.3 --criterion cross_entropy_rbn
                --lr 0.002 --warmup-updates 500
            )
            blocks=(--sample-break-mode none --tokens-per-sample 32)
            sentences=(--sample-break-mode eos --tokens-per-sample 128)
            norms decoder blocks "$seed" "${model[@]}" "${blocks[@]}"
            norms decoder sentences "$seed" "${model[@]}" "${sentences[@]}"
            norms decoder mixed "$seed" "${model[@]}" "${sentences[@]}" --length-mixing 16
            ;;
        *)
            echo "TASK must be ptb, but is '$task'" >&2
            exit 2
            ;;
    esac
done

bash results/keep.sh results/tasks/"$task" "$work"/*-seed[0-9]
