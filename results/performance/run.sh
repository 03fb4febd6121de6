#!/usr/bin/env bash
# Usage: bash results/performance/run.sh DATA-BIN [OUTPUT]
#
# Measures what results/performance shows: rows as JSON and figures in OUTPUT (default: cpu beside
# this file, gpu where there is one). DATA-BIN is that of results/iwslt14_subset/run.sh. Leave the
# machine alone meanwhile: half an hour on two cores.
set -euo pipefail
data=$(realpath "$1")
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
gpu=$(python -c 'import torch; print(torch.cuda.is_available() or "")')
output=${2:-results/performance/$([[ $gpu ]] && echo gpu || echo cpu)}
mkdir -p "$output"

bench() { # NAME VERB ARGUMENT...
    echo "$1: $(date -u +%H:%M)"
    rbn bench "${@:2}" --json "$output/$1.json" >"$output/$1.txt"
}

if [[ $gpu ]]; then
    norm=(--dtype "float32,bfloat16") tokens=(4096 16384) big=(--rounds 20)
else
    norm=(--threads "1,2") tokens=(1024) big=(--rounds 4 --updates 1)
fi
bench norm norm "$data" --name iwslt --norms batch,torch-batch --rounds 8 "${norm[@]}"
bench evaluation norm "$data" --name iwslt --evaluation --rounds 8 "${norm[@]}"
bench generate generate "$data" --rounds 6
for size in "${tokens[@]}"; do
    bench "train-$size" train "$data" --rounds 8 --updates 1 -- \
        --arch rbn_transformer_iwslt_de_en --share-all-embeddings --optimizer adam \
        --max-tokens "$size" --criterion label_smoothed_cross_entropy_rbn --label-smoothing 0.1
done
bench tid tid "$data" --rounds 5 --batches 4 -- \
    --arch rbn_transformer_iwslt_de_en --share-all-embeddings --optimizer adam --max-tokens 1024 \
    --criterion label_smoothed_cross_entropy_rbn --label-smoothing 0.1 --norm-encoder batch
bench profile profile "$data" --updates 3 -- \
    --arch rbn_transformer_iwslt_de_en --share-all-embeddings --optimizer adam --max-tokens 1024 \
    --criterion label_smoothed_cross_entropy_rbn --label-smoothing 0.1
for sweep in tokens channels layers processes; do
    [[ $gpu && $sweep == processes ]] && continue # of the CPU
    bench "scaling-$sweep" scaling --sweep "$sweep" --norms batch,renorm,power,mabn,rms \
        --rounds 5 --figure "$output/scaling-$sweep.png"
done
bench train-4096 train "$data" "${big[@]}"
bench pads norm --tokens 1024,4096,16384,65536 --channels 256,512,1024 --rounds 3
