#!/usr/bin/env bash
# Usage: bash results/pre_norm/run.sh TEXT BIN WORK SEED...
#
# Trains, for each seed, Pre-Norm layer norm and batch norm with 16 bins of lengths, otherwise as
# results/ladder/run.sh, and measures them; TEXT, BIN and WORK are its own. Goes on where it
# was cut off.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=../ladder/steps.sh
source "$(dirname "${BASH_SOURCE[0]}")/../ladder/steps.sh"

pre=(--encoder-normalize-before --decoder-normalize-before)
for seed in "$@"; do
    train "pre-ln-seed$seed" --seed "$seed" "${pre[@]}"
    train "pre-bn-seed$seed" --seed "$seed" "${pre[@]}" "${bins[@]}"
    cost "pre-bn-seed$seed" checkpoint{1..4}.pt
done

bash results/keep.sh results/pre_norm/runs "$work"/pre-{ln,bn}-seed[0-9]
