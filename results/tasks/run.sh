#!/usr/bin/env bash
# Usage: bash results/tasks/run.sh TASK BIN WORK SEED...
#
# Trains layer norm and batch norm on a task with each of its samplers, two trainings at a time, a core
# each, and measures them; with `-rbn` behind TASK, RBN. BIN is the data that `rbn prepare` makes; WORK is
# for checkpoints. Goes on where it was cut off.
#
#   ptb      a language model of 3 layers, width 128: blocks of 32 tokens; sentences in batches of like
#            length; the same sentences in batches of 16 lengths. An hour and a quarter a seed.
#   ptb_pre  the same in Pre-Norm
#   conll    entities of CoNLL-2003, 2 layers, width 128, and a CRF; batches of like length, and shuffled.
#            20 minutes a seed.
#   resume   the same of Resume, 15 minutes
#   imdb     labels of reviews, the paper's model, batches of like length, and shuffled. 20 minutes a seed.
set -euo pipefail
part=$1 task=${1%-rbn} bin=$(realpath "$2")
mkdir -p "$3/$task" && work=$(realpath "$3")/$task
shift 3
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
export OMP_NUM_THREADS=1
export MALLOC_MMAP_THRESHOLD_=2000000000 MALLOC_TRIM_THRESHOLD_=4000000000

train() { # NAME OPTIONS...
    local out=$work/$1
    shift
    if ! grep -qs "done training" "$out/train.log"; then
        mkdir -p "$out"
        rbn train "$bin" --optimizer adam --adam-betas '(0.9, 0.98)' --lr-scheduler polynomial_decay \
            --max-update "$updates" --total-num-update "$updates" --tid-batches 100 \
            --conditioning-interval 0 --keep-last-epochs 1 --cpu --num-workers 0 \
            --no-progress-bar --log-interval 100 --save-dir "$out" "$@" >/dev/null
    fi
    [[ -f $out/score.json ]] ||
        rbn validate "$bin" --path "$out/checkpoint_best.pt" --valid-subset test --cpu --num-workers 0 \
            --max-tokens 4000 --json "$out/score.json" >/dev/null
    [[ $out == */ln-* || -f $out/cost.jsonl ]] ||
        (cd "$out" && rbn cost checkpoint_last.pt --json cost.jsonl >/dev/null)
}

start() { # NAME OPTIONS...: train in the background, once one of two cores is free
    while (($(jobs -rp | wc -l) > 1)); do wait -n; done
    train "$@" &
}

samplers() { # SIDE SEED NAME...: the norms on each sampler; its options are the array NAME, the model's `model`
    local side=$1 seed=$2 name
    local batch=("--norm-$side" batch)
    local penalty=("${batch[@]}" "${weights[@]}" --norm-batch-eps-mode clamp --rbn-convention official)
    for name in "${@:3}"; do
        local -n sampler=$name
        local options=(--seed "$seed" "${model[@]}" "${sampler[@]}")
        if [[ $part == *-rbn ]]; then
            start "rbn-$name-seed$seed" "${options[@]}" "${penalty[@]}"
        else
            start "ln-$name-seed$seed" "${options[@]}"
            start "bn-$name-seed$seed" "${options[@]}" "${batch[@]}"
        fi
    done
    while [[ -n $(jobs -p) ]]; do wait -n; done
}

# shellcheck disable=SC2034 # these arrays are read by their names
blocks=(--sample-break-mode none --tokens-per-sample 32)
# shellcheck disable=SC2034
sentences=(--sample-break-mode eos --tokens-per-sample 128)
# shellcheck disable=SC2034
mixed=("${sentences[@]}" --length-mixing 16)
# shellcheck disable=SC2034
sorted=()
# shellcheck disable=SC2034
shuffled=(--length-mixing random)
tagger=(
    --task sequence_tagging_rbn --arch rbn_transformer_tagger_tiny --criterion crf_rbn --dropout 0.3
    --lr 0.002 --warmup-updates 300 --max-tokens 1000
    --best-checkpoint-metric f1 --maximize-best-checkpoint-metric
)
weights=(--rbn-mean-weight 60) # the authors', of Post-Norm
placement=()
if [[ $task == *_pre ]]; then
    weights=(--rbn-mean-weight 0.1 --rbn-std-weight 0.01)
    placement=(--decoder-normalize-before)
fi
for seed in "$@"; do
    case $task in
        ptb | ptb_pre)
            updates=1980 # 4 epochs of sentences, 3.8 of blocks
            model=(
                "${placement[@]}" --arch rbn_transformer_lm_tiny --decoder-layers 3 --decoder-ffn-embed-dim 512
                --share-decoder-input-output-embed --dropout 0.3 --criterion cross_entropy_rbn
                --lr 0.002 --warmup-updates 500 --max-tokens 2000
            )
            samplers decoder "$seed" blocks sentences mixed
            ;;
        conll | resume)
            updates=3000
            model=("${tagger[@]}")
            samplers encoder "$seed" sorted shuffled
            ;;
        imdb)
            updates=1675
            model=(
                --task text_classification_rbn --arch rbn_transformer_classifier_paper
                --criterion classification_rbn --no-token-positional-embeddings --max-source-positions 512
                --lr 0.001 --warmup-updates 200 --max-tokens 12000
                --best-checkpoint-metric accuracy --maximize-best-checkpoint-metric
            )
            samplers encoder "$seed" sorted shuffled
            ;;
        *)
            echo "TASK must be ptb, ptb_pre, conll, resume or imdb, with or without -rbn, but is '$part'" >&2
            exit 2
            ;;
    esac
done

bash results/keep.sh results/tasks/"$task" "$work"/*-seed*
