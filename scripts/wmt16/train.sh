#!/usr/bin/env bash
# Usage: bash scripts/wmt16/train.sh NORM PLACEMENT SEED... [OPTIONS] [-- HYDRA OVERRIDES]
#
# `rbn run wmt16` from this repository: trains WMT16 En-De with the recipe of
# configs/wmt16_PLACEMENT.yaml, one run a seed, in runs/wmt16/PLACEMENT-NORM-seedSEED. What was cut
# off goes on from its last checkpoint; what is finished is not trained again. Needs the data of
# scripts/wmt16/prepare.sh.
#
#   NORM            ln, bn, rbn (the paper's convention), rbn_official (the authors' published
#                   weights), or the name of any other file of configs/norm
#   PLACEMENT       post or pre
#   SEED...         numbers; the paper has means of three or more
#   --gpus G        GPUs of a training (1). An update is 8 micro-batches of 4,096 tokens on any
#                   number of GPUs that divides 8: the rest is accumulated
#   --max-epoch N, --preset small|mixed, --data DIR, --runs DIR, --dry-run and more: `rbn run --help`
#   -- OVERRIDES    for Hydra, such as common.fp16=true (faster on a GPU; the recipe is fp32)
#
#   bash scripts/wmt16/train.sh rbn pre 1 2 3 --gpus 8
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=../common.sh
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"

help_if_asked "$@"
call_rbn run wmt16 "$@"
