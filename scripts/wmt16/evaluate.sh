#!/usr/bin/env bash
# Usage: bash scripts/wmt16/evaluate.sh NORM PLACEMENT SEED... [OPTIONS]
#
# `rbn evaluate` from this repository: averages the last 6 epoch checkpoints of each run of
# scripts/wmt16/train.sh, estimates the population statistics of the averaged weights anew,
# translates the test set with and without that, and scores, in the run's score.json and
# score_averaged_statistics.json (without new statistics). What is up to date is not done again.
#
#   OPTIONS         --dry-run, --data DATA-BIN: `rbn evaluate --help`
#   RUNS=DIR        before `bash`: where the runs are (runs/wmt16)
#
#   bash scripts/wmt16/evaluate.sh rbn post 1 2 3
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=../common.sh
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"

help_if_asked "$@"
call_for_seeds evaluate wmt16 "$@"
