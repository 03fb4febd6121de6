#!/usr/bin/env bash
# Usage: bash results/sampler/run.sh TEXT BIN WORK SEED...
#
# Trains, for each seed, layer norm and batch norm on fairseq's batches and on batches mixed from 16
# buckets of lengths, 12 epochs with a learning rate that falls to 0, otherwise as results/ladder/run.sh,
# whose TEXT, BIN and WORK are its own, and measures them. Two trainings run at a time, a core each; takes
# about two hours a seed, and goes on where it was cut off.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=../ladder/steps.sh
source "$(dirname "${BASH_SOURCE[0]}")/../ladder/steps.sh"

epochs=12
schedule=(--lr-scheduler polynomial_decay --max-update 10224 --total-num-update 10224)
run() { # NAME OPTIONS...
    train "$1" "${schedule[@]}" "${@:2}"
    if [[ $1 == bn-* ]]; then
        cost "$1" checkpoint{4,8,12}.pt
    fi
}

for seed in "$@"; do
    for norm in ln bn; do
        options=(--seed "$seed")
        [[ $norm == ln ]] || options+=("${batch[@]}")
        run "$norm-sorted-seed$seed" "${options[@]}" &
        run "$norm-mixing16-seed$seed" "${options[@]}" --length-mixing 16
        wait $!
    done
done

bash results/keep.sh results/sampler/runs "$work"/{ln,bn}-{sorted,mixing16}-seed[0-9]
