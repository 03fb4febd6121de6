#!/usr/bin/env bash
# Usage: bash scripts/wmt16/evaluate.sh NORM PLACEMENT SEED... [OPTIONS]
#
# Averages the last 6 epoch checkpoints of each run of scripts/wmt16/train.sh, estimates the
# population statistics of the averaged weights anew, translates the test set with and without
# that, and scores: BLEU4 on the tokens with compounds split, as the paper's line of work reports,
# and sacreBLEU.
# The scores are in the run's score.json and score_averaged_statistics.json (without new
# statistics). What is up to date is not done again.
#
#   NORM PLACEMENT SEED...   as for train.sh
#   --last N        how many epochs to average (6, or --max-epoch where that is fewer)
#   --max-epoch N, --preset NAME, --data DIR, --runs DIR, --dry-run   as for train.sh
#
#   bash scripts/wmt16/evaluate.sh rbn post 1 2 3
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=../benchmark.sh
source "$(dirname "${BASH_SOURCE[0]}")/../benchmark.sh"

read_arguments "--data --runs --preset --max-epoch --last" "$@"
read_runs
check_data
[[ $dry_run ]] || use_environment
evaluate_runs
