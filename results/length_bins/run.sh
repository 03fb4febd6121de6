#!/usr/bin/env bash
# Usage: bash results/length_bins/run.sh WORK REFERENCE
#
# Measures, on what results/iwslt14_subset/run.sh left in WORK (data in WORK/bin, runs in WORK/ln and
# WORK/bn), what statistics by sentence length are worth. REFERENCE is the tokenised test.en.
set -euo pipefail
work=$(realpath "$1") reference=$(realpath "$2")
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
export OMP_NUM_THREADS=1
export MALLOC_MMAP_THRESHOLD_=2000000000 MALLOC_TRIM_THRESHOLD_=4000000000
here=results/length_bins out=$work/length_bins
mkdir -p "$out"

checkpoints=()
for epoch in 2 4 6 8 10; do
    checkpoints+=("$work/bn/checkpoint$epoch.pt")
done
rbn cost "${checkpoints[@]}" --json "$work/bn/cost.jsonl" --overwrite

rbn recalibrate "$work/bn/checkpoint10.pt" --data "$work/bin" --length-bins 16 \
    --output "$out/bn16.pt" --overwrite
rbn generate "$work/bin" --path "$out/bn16.pt" --cpu --beam 5 --lenpen 1 --max-len-a 1 \
    --max-len-b 50 --remove-bpe --max-tokens 6000 --num-workers 0 >"$out/bn16.txt"
rbn score "$out/bn16.txt" --lang en --reference "$reference" --against "$work/bn/generated.txt" \
    --json "$out/score.json" --overwrite

bash results/keep.sh "$here/runs" "$work"/{ln,bn}
python results/cost_by_epoch.py length_bins
