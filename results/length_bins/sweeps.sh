#!/usr/bin/env bash
# Usage: bash results/length_bins/sweeps.sh BIN OTHER WORK SEED...
#
# Measures on what results/ladder/run.sh BIN left in WORK: 4 bins in every epoch, and on the last
# checkpoints other numbers of bins, and validation sets of lengths and of texts that the training
# has not seen, in OTHER, where other.py and binarise.sh put them. A line a number goes to
# WORK/ladder/sweeps.csv, and to results/length_bins.
set -euo pipefail
bin=$(realpath "$1") other=$(realpath "$2") work=$(realpath "$3")/ladder
shift 3
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
export OMP_NUM_THREADS=1
export MALLOC_MMAP_THRESHOLD_=2000000000 MALLOC_TRIM_THRESHOLD_=4000000000

validate() { # SEED SET STATISTICS DATA CHECKPOINT [OVERRIDES]
    local key=$1,$2,$3 nll
    grep -q "^$key," "$work/sweeps.csv" && return
    nll=$(fairseq-validate "$4" --user-dir rbn_fairseq --task translation_rbn --path "$5" \
        --model-overrides "${6:-{\}}" --max-tokens 2000 --cpu --num-workers 0 2>&1 |
        sed -n 's/.*| nll_loss \([0-9.]*\).*/\1/p')
    echo "$key,$nll" >>"$work/sweeps.csv"
}

[[ -f $work/sweeps.csv ]] || echo seed,set,statistics,nll >"$work/sweeps.csv"
for seed in "$@"; do
    for epoch in 1 2 3; do
        to=$work/recalibrated-$seed-epoch$epoch-4-quantiles.pt
        [[ -f $to ]] || rbn recalibrate "$work/bn-seed$seed/checkpoint$epoch.pt" \
            --data "$bin" --output "$to" --length-bins 4
        validate "$seed" valid "epoch $epoch recalibrated 4:quantiles" "$bin" "$to"
    done
    ln=$work/ln-seed$seed/checkpoint4.pt bn=$work/bn-seed$seed/checkpoint4.pt
    for bins in 2 4 8 16 64; do
        to=$work/recalibrated-$seed-$bins-quantiles.pt
        [[ -f $to ]] || rbn recalibrate "$bn" --data "$bin" --output "$to" --length-bins "$bins"
        validate "$seed" valid "recalibrated $bins:quantiles" "$bin" "$to"
    done
    for name in joined4 joined8 longest tatoeba news; do
        data=$other/$name/bin
        validate "$seed" "$name" ln "$data" "$ln"
        validate "$seed" "$name" running "$data" "$bn" "{'norm_batch_length_bins': 1}"
        validate "$seed" "$name" by-length "$data" "$bn"
    done
done
cp "$work/sweeps.csv" results/length_bins
