#!/usr/bin/env bash
# Usage: bash scripts/wmt16/train.sh NORM PLACEMENT SEED... [OPTIONS] [-- HYDRA OVERRIDES]
#
# Trains WMT16 En-De with the recipe of configs/wmt16_PLACEMENT.yaml, one run a seed,
# in runs/wmt16/PLACEMENT-NORM-seedSEED. What was cut off goes on from its last checkpoint; what is
# finished is not trained again. Needs the data of scripts/wmt16/prepare.sh.
#
#   NORM            ln, bn, rbn (the paper's convention), rbn_official (the authors' published
#                   weights), or the name of any other file of configs/norm
#   PLACEMENT       post or pre
#   SEED...         numbers; the paper has means of three or more
#   --gpus G        GPUs of each machine (1). An update is 8 micro-batches of 4,096 tokens on any
#                   number of GPUs that divides 8: the rest is accumulated
#   --nodes M       machines (1)
#   --launcher L    local: fairseq starts a process a GPU on this machine (default);
#                   torchrun: the same by torchrun; with --nodes M call this on every machine, with
#                   the same --master HOST:PORT. Data and runs must be on a disk that all share;
#                   slurm: one job a seed, with the settings of configs/launcher/slurm.yaml, from a
#                   disk that the nodes share. The command waits for its jobs; do not call it again
#                   while they run. Needs pip install hydra-submitit-launcher
#   --max-epoch N   stop after so many epochs (never; 100,000 updates)
#   --preset small  a model and batches for a CPU (configs/preset/small.yaml)
#   --data DIR      what prepare.sh made (data/wmt16)
#   --runs DIR      where runs go (runs/wmt16; with --preset, runs/wmt16-PRESET)
#   --dry-run       print every command instead of running it
#   -- OVERRIDES    for Hydra, such as common.fp16=true (faster on a GPU; the recipe is fp32)
#
#   bash scripts/wmt16/train.sh rbn post 1 2 3
#   bash scripts/wmt16/train.sh rbn pre 1 --gpus 8
#   bash scripts/wmt16/train.sh rbn pre 1 2 3 --launcher slurm --nodes 1 --gpus 8 \
#       -- hydra.launcher.partition=gpu
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=../benchmark.sh
source "$(dirname "${BASH_SOURCE[0]}")/../benchmark.sh"

read_arguments "--data --runs --preset --max-epoch --gpus --nodes --launcher --master --" "$@"
read_runs
check_data
[[ $dry_run ]] || use_environment
train_runs
