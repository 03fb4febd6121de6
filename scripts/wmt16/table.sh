#!/usr/bin/env bash
# Usage: bash scripts/wmt16/table.sh [OPTIONS]
#
# Prints the rows of the paper's Table 2 for WMT16 En-De from the runs that
# scripts/wmt16/evaluate.sh scored: mean and standard deviation over seeds, and
# the paper's number where data, model and epochs are the paper's.
#
#   --runs DIR      the runs (runs/wmt16; those of `--preset small` are in runs/wmt16-small)
#   --json FILE     also write the scores as JSON, an entry a run; --overwrite one that is there
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=../common.sh
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"

help_if_asked "$@"
call_rbn table wmt16 --runs "$PWD/runs/wmt16" "$@" # of two, the last counts
