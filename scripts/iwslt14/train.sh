#!/usr/bin/env bash
# Usage: bash scripts/iwslt14/train.sh NORM PLACEMENT SEED... [OPTIONS] [-- HYDRA OVERRIDES]
#
# `rbn run iwslt14` from this repository: trains IWSLT14 De-En with the recipe of
# configs/iwslt14_PLACEMENT.yaml, one run a seed, in runs/iwslt14/PLACEMENT-NORM-seedSEED. What was cut
# off goes on from its last checkpoint; what is finished is not trained again. Needs the data of
# scripts/iwslt14/prepare.sh.
#
#   NORM            ln, bn, rbn (the paper's convention), rbn_official (the authors' published
#                   weights), or the name of any other file of configs/norm
#   PLACEMENT       post or pre
#   SEED...         numbers; the paper has means of three or more
#   --max-epoch N, --preset small|mixed, --data DIR, --runs DIR, --dry-run and more: `rbn run --help`
#   -- OVERRIDES    for Hydra, such as common.fp16=true (faster on a GPU; the recipe is fp32)
#
#   bash scripts/iwslt14/train.sh rbn post 1 2 3
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=../common.sh
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"

help_if_asked "$@"
call_rbn run iwslt14 "$@"
