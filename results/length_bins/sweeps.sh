#!/usr/bin/env bash
# Usage: bash results/length_bins/sweeps.sh OTHER WORK SEED
#
# Measures on the last checkpoints that seeds.sh left in WORK: other numbers of bins and ways of
# cutting them, and validation sets of lengths and of texts that the training has not seen. OTHER
# has a directory NAME/bin for each set that other.py writes: fairseq's data with the dictionary of
# the training, and the training's own train set.
set -euo pipefail
other=$1 work=$2 seed=$3
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
export OMP_NUM_THREADS=1
export MALLOC_MMAP_THRESHOLD_=2000000000 MALLOC_TRIM_THRESHOLD_=4000000000
ln=$work/ln-seed$seed/checkpoint4.pt bn=$work/bn-seed$seed

for name in joined4 joined8 longest tatoeba news; do
    rbn cost "$bn/checkpoint4.pt" --data "$other/$name/bin" --output "$bn/cost_$name.jsonl"
    fairseq-validate "$other/$name/bin" --path "$ln" --max-tokens 2000 --cpu --num-workers 0 \
        --user-dir rbn_fairseq 2>&1 | grep 'valid on' >"$bn/ln_$name.txt"
done
for cut in 2:quantiles 4:quantiles 8:quantiles 64:quantiles 16:tokens 16:geometric; do
    rbn cost "$bn/checkpoint4.pt" --length-bins "${cut%:*}" --length-edges "${cut#*:}" \
        --output "$bn/cost_${cut/:/_}.jsonl"
done
