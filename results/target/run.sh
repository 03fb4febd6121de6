#!/usr/bin/env bash
# Usage: bash results/target/run.sh TEXT BIN WORK SEED...
#
# Trains, for each seed, RBN that holds a target (--rbn-target-tid) and the cells of a grid around
# the published weights, otherwise as results/ladder/run.sh, and measures them; TEXT, BIN and WORK
# are its own. The option is gone since: check commit c77575a out, with whose code this ran. Takes
# half an hour a training on one core, and goes on where it was cut off.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=../ladder/steps.sh
source "$(dirname "${BASH_SOURCE[0]}")/../ladder/steps.sh"

run() { # NAME OPTIONS...
    train "$@"
    cost "$1" checkpoint4.pt
    translate "$1" score checkpoint4.pt
}

grid=("${batch[@]}" --norm-batch-eps-mode clamp --rbn-convention official)
for seed in "$@"; do
    run "auto1-seed$seed" --seed "$seed" "${batch[@]}" --rbn-target-tid 1,1
    run "auto-mean-seed$seed" --seed "$seed" "${batch[@]}" --rbn-target-tid 1,100
    run "rbn6-seed$seed" --seed "$seed" "${grid[@]}" --rbn-mean-weight 6
    run "rbn600-seed$seed" --seed "$seed" "${grid[@]}" --rbn-mean-weight 600
    run "rbn60-1-seed$seed" --seed "$seed" "${grid[@]}" --rbn-mean-weight 60 --rbn-std-weight 1
done

bash results/keep.sh results/target/runs "$work"/{auto,rbn6}*-seed[0-9]
