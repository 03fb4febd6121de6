#!/usr/bin/env bash
# Usage: bash results/hybrids/run.sh TEXT BIN WORK SEED...
#
# Trains, for each seed, RBN in the lower two layers of the encoder with layer norm above, RBN behind
# RMS norm in all of them, and for two epochs BN in the lower 1, 2 and 3, otherwise as
# results/ladder/run.sh, and measures them; TEXT, BIN and WORK are its own. Takes a quarter of an
# hour for two epochs on one core, and goes on where it was cut off.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=../ladder/steps.sh
source "$(dirname "${BASH_SOURCE[0]}")/../ladder/steps.sh"

for seed in "$@"; do
    train "hybrid-layers-seed$seed" --seed "$seed" "${penalty[@]}" --norm-encoder batch@0-1:layer
    train "hybrid-rms-seed$seed" --seed "$seed" "${penalty[@]}" --norm-encoder rms+batch
    for name in hybrid-{layers,rms}-seed$seed; do
        cost "$name" checkpoint4.pt
        translate "$name" score checkpoint4.pt
    done
done

epochs=2
for seed in "$@"; do
    train "bn1-seed$seed" --seed "$seed" "${batch[@]}" --norm-encoder batch@0:layer
    train "bn2-seed$seed" --seed "$seed" "${batch[@]}" --norm-encoder batch@0-1:layer
    train "bn3-seed$seed" --seed "$seed" "${batch[@]}" --norm-encoder batch@0-2:layer
done

bash results/keep.sh results/hybrids/runs "$work"/{hybrid-layers,hybrid-rms,bn1,bn2,bn3}-seed[0-9]
