#!/usr/bin/env bash
# Usage: bash results/quality/run.sh TEXT BIN WORK SEED...
#
# Trains, for each seed and both at once, fairseq's own transformer on fairseq's batches and layer norm
# with batches of 16 buckets of lengths, 8 epochs, otherwise as results/ladder/run.sh, whose TEXT, BIN and
# WORK are its own. Takes about an hour a seed on two cores, and goes on where it was cut off.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=../ladder/steps.sh
source "$(dirname "${BASH_SOURCE[0]}")/../ladder/steps.sh"

epochs=8
train_fairseq() { # NAME OPTIONS...
    local out=$work/$1 side shape=()
    [[ -f $out/checkpoint$epochs.pt ]] && return
    mkdir -p "$out"
    for side in encoder decoder; do
        shape+=("--$side-embed-dim" 128 "--$side-ffn-embed-dim" 256 "--$side-attention-heads" 4)
    done
    # fairseq reads its own checkpoints in the way that torch refuses from 2.6 on
    TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD=1 fairseq-train "$bin" --arch transformer "${shape[@]}" --encoder-layers 4 --decoder-layers 2 \
        --share-all-embeddings --dropout 0.1 \
        --criterion label_smoothed_cross_entropy --label-smoothing 0.1 \
        --optimizer adam --adam-betas '(0.9, 0.98)' \
        --lr 0.002 --lr-scheduler inverse_sqrt --warmup-updates 1000 \
        --max-tokens 2000 --max-epoch "$epochs" --cpu --num-workers 0 \
        --no-progress-bar --log-interval 100 --log-format json --save-dir "$out" "${@:2}" >>"$out/train.log"
}

for seed in "$@"; do
    train_fairseq "fairseq-seed$seed" --seed "$seed" &
    train "ln-mixing16-seed$seed" --seed "$seed" --length-mixing 16
    wait $!
done

bash results/keep.sh results/quality/runs "$work"/{fairseq,ln-mixing16}-seed[0-9]
python results/quality/reached.py results/quality/runs >results/quality/reached.txt
