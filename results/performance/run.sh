#!/usr/bin/env bash
# Usage: bash results/performance/run.sh DATA-BIN [OUTPUT]
#
# Measures what results/performance shows: rows as JSON in OUTPUT (default: cpu beside this file, gpu
# where there is one). DATA-BIN is the IWSLT14 subset with the standard 10,000 BPE codes and a joint
# dictionary, 10,080 types. Leave the machine alone meanwhile: about an hour and a half on two cores.
# On the CPU, norms alone and updates run at one thread and at two, all else at one.
set -euo pipefail
data=$(realpath "$1")
output=${2:+$(realpath -m "$2")}
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
gpu=$(python -c 'import torch; print(torch.cuda.is_available() or "")')
output=${output:-results/performance/$([[ $gpu ]] && echo gpu || echo cpu)}
mkdir -p "$output"

bench() { # NAME SCRIPT ARGUMENT...
    echo "$1: $(date -u +%H:%M)"
    python "benchmarks/$2.py" "$data" --json "$output/$1.json" --overwrite "${@:3}"
}

if [[ $gpu ]]; then
    threads=(1) rounds=8 steps=20
else
    threads=(1 2) rounds=3 steps=10
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
bench generate generation --rounds 4 --batches 1 --steps "$steps" -- "${large[@]}"
for number in "${threads[@]}"; do
    bench "norm-threads-$number" norms --norm batch --norm torch-batch --rounds 8 \
        --threads "$number"
    bench "evaluation-threads-$number" norms --evaluation --rounds 8 --threads "$number"
    bench "train-2000-threads-$number" updates --threads "$number" "${settings[@]}" \
        --rounds 12 --updates 4 -- "${small[@]}"
    bench "train-4096-threads-$number" updates --threads "$number" "${settings[@]}" \
        --rounds "$rounds" --updates 1 -- "${large[@]}"
done
if [[ $gpu ]]; then
    # At the default loss scale the first updates are dropped, and the optimizer has no state.
    bench train-4096-float16 updates "${settings[@]}" --rounds "$rounds" --updates 4 \
        -- "${large[@]}" --fp16 --fp16-init-scale 4
    bench norm-bfloat16 norms --norm batch --norm torch-batch --rounds 8 --dtype bfloat16
    bench evaluation-bfloat16 norms --evaluation --rounds 8 --dtype bfloat16
fi
