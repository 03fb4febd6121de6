#!/usr/bin/env bash
# Usage: bash results/wider/run.sh TEXT BIN WORK SEED...
#
# Trains, for each seed, batch norm with 16 bins of lengths at twice the width, 2 epochs, otherwise
# as results/ladder/run.sh, and measures it; TEXT, BIN and WORK are its own. Takes 40 minutes a seed on
# one core, and goes on where it was cut off.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=../ladder/steps.sh
source "$(dirname "${BASH_SOURCE[0]}")/../ladder/steps.sh"

epochs=2
wide=()
for side in encoder decoder; do
    wide+=("--$side-embed-dim" 256 "--$side-ffn-embed-dim" 512)
done
for seed in "$@"; do
    train "wide-bn-seed$seed" --seed "$seed" "${bins[@]}" "${wide[@]}"
    cost "wide-bn-seed$seed" checkpoint{1..2}.pt
done

bash results/keep.sh results/wider/runs "$work"/wide-bn-seed[0-9]
