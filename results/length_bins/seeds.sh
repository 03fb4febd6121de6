#!/usr/bin/env bash
# Usage: bash results/length_bins/seeds.sh TEXT BIN WORK SEED...
#
# Trains layer norm and batch norm with 16 bins of lengths (4 + 2 layers, 4 epochs) and measures,
# for each seed, what statistics by length are worth. TEXT is the directory of the same name of
# results/iwslt14_subset/run.sh, and BIN the data that it makes; WORK is for checkpoints. Takes
# about an hour a seed on one core, and goes on where it was cut off.
set -euo pipefail
text=$(realpath "$1") bin=$(realpath "$2") work=$3
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
        --no-progress-bar --log-interval 100 --tid-batches 100 --save-dir "$out" "$@" \
        >>"$out/train.log"
}

translate() { # NAME CHECKPOINT OPTIONS...
    local out=$work/$1 checkpoint=$work/$2
    shift 2
    [[ -f $out.json ]] && return
    rbn generate "$bin" --path "$checkpoint" --cpu --beam 5 --lenpen 1 --max-len-a 1 \
        --max-len-b 50 --remove-bpe --max-tokens 6000 --num-workers 0 "$@" >"$out.txt"
    rbn score "$out.txt" --lang en --reference "$text/test.en" --output "$out.json"
}

for seed in "$@"; do
    ln=ln-seed$seed bn=bn-seed$seed
    train "$ln" --seed "$seed"
    train "$bn" --seed "$seed" --norm-encoder batch --norm-batch-length-bins 16
    if [[ ! -f $work/$bn/cost.jsonl ]]; then
        rbn cost "$work/$bn"/checkpoint[1-4].pt --output "$work/$bn/cost.jsonl"
    fi
    translate "$ln/ln" "$ln/checkpoint4.pt"
    translate "$bn/global" "$bn/checkpoint4.pt" --model-overrides "{'norm_batch_length_bins': 1}"
    translate "$bn/by_length" "$bn/checkpoint4.pt"
done
