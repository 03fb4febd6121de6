#!/usr/bin/env bash
# Usage: bash scripts/wmt16/table.sh [--runs DIR]
#
# Prints the paper's Tables 1, 2 and 4 for WMT16 En-De from the runs that
# scripts/wmt16/evaluate.sh scored: means and standard deviations over seeds,
# the paper's numbers beside them.
#
#   --runs DIR      the runs (runs/wmt16; those of `--preset small` are in runs/wmt16-small)
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=../common.sh
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"

help_if_asked "$@"
runs=$(runs_given "$PWD/runs/wmt16" "$@")
call_rbn table "$runs"/*/
