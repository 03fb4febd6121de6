#!/usr/bin/env bash
# Usage: bash results/performance/run.sh DATA-BIN [OUTPUT]
#
# Measures what results/performance shows: rows as JSON and figures in OUTPUT (default: cpu beside
# this file, gpu where there is one). DATA-BIN is the IWSLT14 subset with the standard 10,000 BPE
# codes and a joint dictionary, 10,080 types. Leave the machine alone meanwhile: about an hour and a
# half on two cores. On the CPU, norms alone (norm, evaluation) and updates run at one thread and at
# two, all else at one.
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
    norm=(--dtype "float32,bfloat16") threads=(1) rounds=8 steps=20
else
    norm=(--threads "1,2") threads=(1 2) rounds=3 steps=10
fi
train=(
    --share-all-embeddings --optimizer adam --lr 0.0005 --label-smoothing 0.1
    --criterion label_smoothed_cross_entropy_rbn
)
small=(--arch rbn_transformer_tiny --encoder-layers 4 --max-tokens 2000 "${train[@]}")
large=(--arch rbn_transformer_iwslt_de_en --max-tokens 4096 "${train[@]}")
settings=(
    --setting fairseq --setting layer --setting batch --setting rbn
    --setting "layer, mixed 16: --length-mixing 16"
    --setting "batch, mixed 16: --norm-encoder batch --length-mixing 16"
    --setting "batch, random: --norm-encoder batch --length-mixing random"
)
bench norm norm "$data" --name iwslt --norms batch,torch-batch --rounds 8 "${norm[@]}"
bench evaluation norm "$data" --name iwslt --evaluation --rounds 8 "${norm[@]}"
bench generate generate "$data" --rounds 4 --batches 1 --steps "$steps" -- "${large[@]}"
for number in "${threads[@]}"; do
    bench "train-2000-threads-$number" train "$data" --threads "$number" "${settings[@]}" \
        --rounds 12 --updates 4 -- "${small[@]}"
    bench "train-4096-threads-$number" train "$data" --threads "$number" "${settings[@]}" \
        --rounds "$rounds" --updates 1 -- "${large[@]}"
done
common=(--arch rbn_transformer_iwslt_de_en --max-tokens 1024 "${train[@]}")
bench tid tid "$data" --rounds 5 --batches 4 -- "${common[@]}" --norm-encoder batch
for sweep in tokens channels layers; do
    bench "scaling-$sweep" scaling --sweep "$sweep" --norms batch,renorm,power,mabn,rms \
        --rounds 5 --figure "$output/scaling-$sweep.png"
done
