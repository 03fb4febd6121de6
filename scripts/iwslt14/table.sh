#!/usr/bin/env bash
# Usage: bash scripts/iwslt14/table.sh [--runs DIR]
#
# Prints the paper's Tables 1, 2 and 4 for IWSLT14 De-En from the runs that
# scripts/iwslt14/evaluate.sh scored: means and standard deviations over seeds,
# the paper's numbers beside them.
#
#   --runs DIR      the runs (runs/iwslt14; those of `--preset small` are in runs/iwslt14-small)
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=../common.sh
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"

help_if_asked "$@"
runs=$(runs_given "$PWD/runs/iwslt14" "$@")
call_rbn table "$runs"/*/
