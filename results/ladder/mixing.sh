#!/usr/bin/env bash
# Usage: bash results/ladder/mixing.sh TEXT BIN WORK SEED...
#
# Trains, for each seed, batch norm with batches of 4 and of 16 buckets of lengths and layer norm with
# batches of 16, otherwise as run.sh, and measures them. Takes about four hours and a half a seed on
# one core, most of it padding, and goes on where it was cut off.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=steps.sh
source "$(dirname "${BASH_SOURCE[0]}")/steps.sh"

batch=(--norm-encoder batch --tid-batches 100 --norm-batch-length-bins 16)
for seed in "$@"; do
    train "bn-mixing4-seed$seed" --seed "$seed" "${batch[@]}" --length-mixing 4
    train "bn-mixing16-seed$seed" --seed "$seed" "${batch[@]}" --length-mixing 16
    train "ln-mixing16-seed$seed" --seed "$seed" --length-mixing 16
    cost "bn-mixing4-seed$seed" checkpoint{1..4}.pt
    cost "bn-mixing16-seed$seed" checkpoint{1..4}.pt
done

bash results/keep.sh results/ladder/mixing "$work"/{ln,bn}-mixing*-seed[0-9]
