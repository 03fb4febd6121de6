#!/usr/bin/env bash
# Usage: bash results/rbn_bins/run.sh TEXT BIN WORK SEED...
#
# Trains, for each seed, RBN with 16 bins of lengths, whose penalty is the gap to the statistics of
# the sentence's own length, otherwise as results/ladder/run.sh, and measures it; TEXT, BIN and WORK
# are its own. Takes half an hour a seed on one core, and goes on where it was cut off.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=../ladder/steps.sh
source "$(dirname "${BASH_SOURCE[0]}")/../ladder/steps.sh"

for seed in "$@"; do
    train "rbn-bins-seed$seed" --seed "$seed" "${bins[@]}" "${penalty[@]}"
    cost "rbn-bins-seed$seed" checkpoint4.pt
    translate "rbn-bins-seed$seed" score checkpoint4.pt
done

bash results/keep.sh results/rbn_bins/runs "$work"/rbn-bins-seed[0-9]
