#!/usr/bin/env bash
# Usage: bash scripts/wmt16/table.sh
#
# Prints the paper's Tables 1, 2 and 4 for WMT16 En-De from the runs that
# scripts/wmt16/evaluate.sh scored: means and standard deviations over seeds,
# the paper's numbers beside them.
#
#   RUNS=DIR        before `bash`: where the runs are (runs/wmt16)
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=../common.sh
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"

help_if_asked "$@"
call_table wmt16
