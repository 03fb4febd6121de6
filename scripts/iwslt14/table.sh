#!/usr/bin/env bash
# Usage: bash scripts/iwslt14/table.sh
#
# Prints the paper's Tables 1, 2 and 4 for IWSLT14 De-En from the runs that
# scripts/iwslt14/evaluate.sh scored: means and standard deviations over seeds,
# the paper's numbers beside them.
#
#   RUNS=DIR        before `bash`: where the runs are (runs/iwslt14)
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=../common.sh
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"

help_if_asked "$@"
call_table iwslt14
