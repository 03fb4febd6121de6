#!/usr/bin/env bash
# Usage: bash results/measure.sh RUN_DIR CHECKPOINT
#
# Measures on a checkpoint of a run where its TID comes from and what it costs, for `rbn report`.
set -euo pipefail
batchings=()
for kind in as-trained random mixed:2 mixed:4 mixed:8 mixed:16; do
    batchings+=(--tid-batching "$kind")
done
rbn tid "$1/$2" "${batchings[@]}" --json "$1/tid_batching.jsonl" --overwrite
rbn cost "$1/$2" --json "$1/cost.jsonl" --overwrite
