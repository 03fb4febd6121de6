#!/usr/bin/env bash
# Usage: bash scripts/wmt16/table.sh [OPTIONS]
#
# Prints the rows of the paper's Table 2 for WMT16 En-De from the runs that
# scripts/wmt16/evaluate.sh scored: mean and standard deviation over seeds,
# the paper's number where data, model and epochs are the paper's, and the
# commands that fill what is missing.
#
#   --json FILE     also write the scores as JSON, an entry a run
#   --runs DIR, --data DIR, --preset NAME, --max-epoch N, --dry-run
#                   as for train.sh
#
#   bash scripts/wmt16/table.sh
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=../benchmark.sh
source "$(dirname "${BASH_SOURCE[0]}")/../benchmark.sh"

read_arguments "--data --runs --preset --max-epoch --json" "$@"
((${#arguments[@]} == 0)) || die "table.sh takes options only, not '${arguments[0]}'"
[[ $dry_run ]] || use_environment
print_table
