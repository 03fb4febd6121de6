#!/usr/bin/env bash
# Usage: bash results/ladder/run.sh TEXT BIN WORK SEED...
#
# Trains, for each seed, layer norm, batch norm with 16 bins of lengths, and RBN with the authors'
# weights (4 + 2 layers, 4 epochs), and measures them. TEXT is the directory of the same name of
# results/iwslt14_subset/run.sh, and BIN the data that it makes; WORK is for checkpoints. Takes about
# an hour and a half a seed on one core, and goes on where it was cut off.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=steps.sh
source "$(dirname "${BASH_SOURCE[0]}")/steps.sh"

joint() { # NAME CHECKPOINT
    local kind batchings=()
    for kind in as-trained joint:2 joint:4 joint:8 joint:16 random; do
        batchings+=(--tid-batching "$kind")
    done
    [[ -f $work/$1/tid_batching.jsonl ]] ||
        (cd "$work/$1" && rbn tid "$2" "${batchings[@]}" --json tid_batching.jsonl --overwrite)
}

for seed in "$@"; do
    train "ln-seed$seed" --seed "$seed"
    train "bn-seed$seed" --seed "$seed" "${bins[@]}"
    train "rbn-seed$seed" --seed "$seed" "${penalty[@]}"
    cost "bn-seed$seed" checkpoint{1..4}.pt
    cost "rbn-seed$seed" checkpoint4.pt
    joint "bn-seed$seed" checkpoint4.pt
    for run in ln bn rbn; do
        translate "$run-seed$seed" score checkpoint4.pt
    done
    translate "bn-seed$seed" global checkpoint4.pt --model-overrides "{'norm_batch_length_bins': 1}"
    recalibrate "bn-seed$seed" pooled --population pooled --length-bins 1
    recalibrate "bn-seed$seed" bins16 --length-bins 16
    recalibrate "rbn-seed$seed" bins16 --length-bins 16
done

bash results/keep.sh results/ladder/runs "$work"/{ln,bn,rbn}-seed[0-9]
for scores in "$work"/bn-seed[0-9]/{global,pooled,bins16}.json "$work"/rbn-seed[0-9]/bins16.json; do
    cp "$scores" "results/ladder/runs/$(basename "$(dirname "$scores")")"
done
rbn report results/ladder/runs/* --output "$work/report" \
    --title "IWSLT14 De-En, 48.8k-pair subset, three seeds"
cp "$work"/report/figures/{figure1,figure3_right,figure4,cost}.png results/ladder
python results/cost_by_epoch.py ladder
