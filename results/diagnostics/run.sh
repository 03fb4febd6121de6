#!/usr/bin/env bash
# Usage: bash results/diagnostics/run.sh DATA-BIN WORK [EPOCHS]
#
# Trains what this directory shows, two runs at a time, measures, scores, and keeps what a report
# needs. DATA-BIN is that of results/iwslt14_subset/run.sh; WORK is for checkpoints. Goes on where
# it was cut off; with more EPOCHS (default 2) it goes on training.
set -euo pipefail
data=$(realpath "$1") work=$(realpath -m "$2")
epochs=${3:-2}
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
export OMP_NUM_THREADS=1
export MALLOC_MMAP_THRESHOLD_=2000000000 MALLOC_TRIM_THRESHOLD_=4000000000 MALLOC_TOP_PAD_=200000000

train() { # PLACEMENT NORM
    local out=$work/$1-$2-seed1 options=()
    mkdir -p "$out"
    [[ $1 == pre ]] && options+=(--encoder-normalize-before --decoder-normalize-before)
    [[ $2 == ln ]] || options+=(--norm-encoder batch)
    case $1-$2 in # the authors' published weights
        post-rbn) options+=(--rbn-convention official --rbn-mean-weight 60) ;;
        pre-rbn) options+=(--rbn-convention official --rbn-mean-weight 0.1 --rbn-std-weight 0.01) ;;
    esac
    rbn train "$data" --arch rbn_transformer_tiny --encoder-layers 4 --decoder-layers 2 \
        --share-all-embeddings --dropout 0.1 --criterion label_smoothed_cross_entropy_rbn \
        --label-smoothing 0.1 --optimizer adam --adam-betas '(0.9, 0.98)' --lr 0.002 \
        --lr-scheduler inverse_sqrt --warmup-updates 1000 --max-tokens 2000 \
        --max-epoch "$epochs" --seed 1 --cpu --num-workers 0 --conditioning-interval 100 \
        --eval-bleu --eval-bleu-args '{"beam": 1, "max_len_a": 1.2, "max_len_b": 10}' \
        --eval-bleu-remove-bpe --eval-bleu-detok space --eval-tokenized-bleu \
        --no-progress-bar --log-interval 200 --save-dir "$out" "${options[@]}" >/dev/null
}

score() { # PLACEMENT NORM
    local out=$work/$1-$2-seed1 against=()
    [[ $2 == ln ]] || against=(--against "$work/$1-ln-seed1/generated.txt")
    rbn generate "$data" --path "$out/checkpoint_last.pt" --cpu --beam 1 \
        --max-len-a 1 --max-len-b 50 --remove-bpe --max-tokens 6000 --num-workers 0 \
        >"$out/generated.txt"
    rbn score "$out/generated.txt" --lang en "${against[@]}" --json "$out/score.json" --overwrite
    [[ $2 == ln ]] && return
    bash results/measure.sh "$out" checkpoint_last.pt
}

for placement in post pre; do
    train $placement ln &
    first=$!
    train $placement bn
    wait "$first" # fails where that training did
    train $placement rbn
    for norm in ln bn rbn; do score $placement $norm; done
done

bash results/keep.sh results/diagnostics/runs "$work"/{post,pre}-{ln,bn,rbn}-seed1
rbn report results/diagnostics/runs/* --output "$work/report" --title "4 + 2 layers, $epochs epochs"
