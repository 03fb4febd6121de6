#!/usr/bin/env bash
# Usage: bash results/performance/run.sh DATA-BIN [OUTPUT]
#
# Measures what results/performance shows: rows as JSON and figures in OUTPUT (default: cpu beside
# this file, gpu where there is one). DATA-BIN is that of results/iwslt14_subset/run.sh. Leave the
# machine alone meanwhile: about 40 minutes on two cores. On the CPU, norms alone (norm, evaluation)
# and updates run at one thread and at two, all else at one.
set -euo pipefail
data=$(realpath "$1")
output=${2:+$(realpath -m "$2")}
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
gpu=$(python -c 'import torch; print(torch.cuda.is_available() or "")')
output=${output:-results/performance/$([[ $gpu ]] && echo gpu || echo cpu)}
mkdir -p "$output"

bench() { # NAME VERB ARGUMENT...
    echo "$1: $(date -u +%H:%M)"
    rbn bench "$2" --json "$output/$1.json" "${@:3}" >"$output/$1.txt"
}

if [[ $gpu ]]; then
    norm=(--dtype "float32,bfloat16") tokens=(4096 16384) steps=20
else
    norm=(--threads "1,2") tokens=(1024) steps=10
fi
small=${tokens[0]}
common=(
    --arch rbn_transformer_iwslt_de_en --share-all-embeddings --optimizer adam --lr 0.0005
    --criterion label_smoothed_cross_entropy_rbn --label-smoothing 0.1 --max-tokens
)
bench norm norm "$data" --name iwslt --norms batch,torch-batch --rounds 8 "${norm[@]}"
bench evaluation norm "$data" --name iwslt --evaluation --rounds 8 "${norm[@]}"
bench generate generate "$data" --rounds 16 --steps "$steps" -- "${common[@]}" "$small"
for size in "${tokens[@]}"; do
    bench "train-$size" train "$data" --mixing 16 --rounds 8 --updates 5 -- "${common[@]}" "$size"
done
[[ $gpu ]] || bench "train-$small-threads-2" train "$data" --threads 2 --mixing 16 --rounds 8 \
    --updates 5 -- "${common[@]}" "$small"
bench tid tid "$data" --rounds 5 --batches 4 -- "${common[@]}" "$small" --norm-encoder batch
bench profile profile "$data" --updates 3 -- "${common[@]}" "$small"
for sweep in tokens channels layers processes; do
    [[ $gpu && $sweep == processes ]] && continue # of the CPU
    bench "scaling-$sweep" scaling --sweep "$sweep" --norms batch,renorm,power,mabn,rms \
        --rounds 5 --figure "$output/scaling-$sweep.png"
done
