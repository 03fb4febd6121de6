#!/usr/bin/env bash
# Usage: bash scripts/iwslt14/train.sh NORM PLACEMENT SEED... [OPTIONS]
#
# `rbn train --recipe iwslt14_PLACEMENT --norm NORM --seed SEED` from this repository: trains
# IWSLT14 De-En, one run a seed, in runs/iwslt14/PLACEMENT-NORM-seedSEED. What was cut
# off goes on from its last checkpoint. Needs the data of scripts/iwslt14/prepare.sh.
#
#   NORM            ln, bn, rbn (the paper's convention), rbn_official (the authors' published
#                   weights), or the name of any other file of configs/norm
#   PLACEMENT       post or pre
#   SEED...         numbers; the paper has means of three or more
#   OPTIONS         of `rbn train`, such as --fp16 (faster on a GPU; the recipe is fp32)
#                   With --preset, another model, give another RUNS
#   RUNS=DIR        before `bash`: where runs go (runs/iwslt14); DATA=DIR: the data (data/iwslt14/bin)
#
#   bash scripts/iwslt14/train.sh rbn post 1 2 3
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=../common.sh
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"

help_if_asked "$@"
call_for_seeds train iwslt14 "$@"
