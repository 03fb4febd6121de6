#!/usr/bin/env bash
# Usage: bash scripts/wmt16/train.sh NORM PLACEMENT SEED... [OPTIONS]
#
# `rbn train --recipe wmt16_PLACEMENT --norm NORM --seed SEED` from this repository: trains
# WMT16 En-De, one run a seed, in runs/wmt16/PLACEMENT-NORM-seedSEED. What was cut
# off goes on from its last checkpoint: name only the seeds that are not finished, as of one that is
# fairseq makes one more update. Needs the data of scripts/wmt16/prepare.sh.
#
#   NORM            ln, bn, rbn (the paper's convention), rbn_official (the authors' published
#                   weights), or the name of any other file of configs/norm
#   PLACEMENT       post or pre
#   SEED...         numbers; the paper has means of three or more
#   OPTIONS         of `rbn train`, such as --fp16 (faster on a GPU; the recipe is fp32)
#                   On G GPUs: --distributed-world-size G --update-freq U, with G x U = 8, so
#                   that an update stays 8 micro-batches of 4,096 tokens (one GPU: 8 in turn)
#                   With --preset, another model, give another RUNS
#   RUNS=DIR        before `bash`: where runs go (runs/wmt16); DATA=DIR: the data (data/wmt16/bin)
#
#   bash scripts/wmt16/train.sh rbn pre 1 2 3 --distributed-world-size 8 --update-freq 1
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=../common.sh
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"

help_if_asked "$@"
call_for_seeds train wmt16 "$@"
