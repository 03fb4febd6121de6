#!/usr/bin/env bash
# Usage: bash scripts/iwslt14/table.sh [OPTIONS]
#
# Prints the rows of the paper's Table 2 for IWSLT14 De-En from the runs that
# scripts/iwslt14/evaluate.sh scored: mean and standard deviation over seeds, and
# the paper's number where data, model and epochs are the paper's.
#
#   --runs DIR      the runs (runs/iwslt14; those of `--preset small` are in runs/iwslt14-small)
#   --json FILE     also write the scores as JSON, an entry a run; --overwrite one that is there
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=../common.sh
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"

help_if_asked "$@"
call_rbn table iwslt14 --runs "$PWD/runs/iwslt14" "$@" # of two, the last counts
