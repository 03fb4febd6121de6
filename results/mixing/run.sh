#!/usr/bin/env bash
# Usage: bash results/mixing/run.sh TEXT BIN WORK SEED...
#
# Trains, for each seed, batch norm with batches of 4 and of 16 buckets of lengths and layer norm with
# batches of 16, otherwise as results/ladder/run.sh, and measures them; TEXT, BIN and WORK are its own.
# Takes about an hour and a half a seed on one core, and goes on where it was cut off.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=../ladder/steps.sh
source "$(dirname "${BASH_SOURCE[0]}")/../ladder/steps.sh"

for seed in "$@"; do
    train "bn-mixing4-seed$seed" --seed "$seed" "${batch[@]}" --length-mixing 4
    train "bn-mixing16-seed$seed" --seed "$seed" "${batch[@]}" --length-mixing 16
    train "ln-mixing16-seed$seed" --seed "$seed" --length-mixing 16
    cost "bn-mixing4-seed$seed" checkpoint{1..4}.pt
    cost "bn-mixing16-seed$seed" checkpoint{1..4}.pt
done

bash results/keep.sh results/mixing/runs "$work"/{ln,bn}-mixing*-seed[0-9]
