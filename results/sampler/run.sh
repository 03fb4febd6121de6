#!/usr/bin/env bash
# Usage: bash results/sampler/run.sh TEXT BIN WORK PART SEED...
#
# Trains and measures a part of the experiment for each seed, two trainings at a time, a core each;
# otherwise as results/ladder/run.sh, whose TEXT, BIN and WORK are its own. Goes on where it was cut off.
#
#   grid       layer norm and batch norm, on fairseq's batches and on those of 16 buckets; 12 epochs with a
#              learning rate that falls to 0, as all the others. About two hours a seed.
#   controls   layer norm: fairseq's batches, every token of equal weight; 16 buckets, composed once
#   random     layer norm and batch norm on batches of random sentences
#   rbn        RBN on fairseq's batches and on those of 16 buckets
#   micro      the grid's four with four micro-batches of a quarter an update, 3,408 updates
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=../ladder/steps.sh
source "$(dirname "${BASH_SOURCE[0]}")/../ladder/steps.sh"

part=$1
shift
epochs=12 updates=10224
[[ $part != micro ]] || epochs=4 updates=3408 # epochs: of which checkpoint ends the training
run() { # NAME OPTIONS...
    train "$1" --lr-scheduler polynomial_decay --max-update "$updates" --total-num-update "$updates" "${@:2}"
    if [[ $1 != ln-* && $part != micro ]]; then
        cost "$1" checkpoint{4,8,12}.pt
    fi
}

controls=(--user-dir results/sampler/controls)
equal=("${controls[@]}" --criterion equal_weights --mean-tokens 1608.4) # the log's wpb
once=("${controls[@]}" --task translation_one_composition --length-mixing 16)
micro=(--max-tokens 500 --update-freq 4)
mixed=(--length-mixing 16)

for seed in "$@"; do
    case $part in
        grid)
            run "ln-mixing16-seed$seed" --seed "$seed" "${mixed[@]}" &
            run "bn-mixing16-seed$seed" --seed "$seed" "${batch[@]}" "${mixed[@]}"
            wait $!
            run "ln-sorted-seed$seed" --seed "$seed" &
            run "bn-sorted-seed$seed" --seed "$seed" "${batch[@]}"
            ;;
        controls)
            run "ln-equal-seed$seed" --seed "$seed" "${equal[@]}" &
            run "ln-once-seed$seed" --seed "$seed" "${once[@]}"
            ;;
        random)
            run "ln-random-seed$seed" --seed "$seed" --length-mixing random &
            run "bn-random-seed$seed" --seed "$seed" "${batch[@]}" --length-mixing random
            ;;
        rbn)
            run "rbn-sorted-seed$seed" --seed "$seed" "${penalty[@]}" &
            run "rbn-mixing16-seed$seed" --seed "$seed" "${penalty[@]}" "${mixed[@]}"
            ;;
        micro)
            run "ln-sorted-micro-seed$seed" --seed "$seed" "${micro[@]}" &
            run "ln-mixing16-micro-seed$seed" --seed "$seed" "${micro[@]}" "${mixed[@]}"
            wait $!
            run "bn-sorted-micro-seed$seed" --seed "$seed" "${batch[@]}" "${micro[@]}" &
            run "bn-mixing16-micro-seed$seed" --seed "$seed" "${batch[@]}" "${micro[@]}" "${mixed[@]}"
            ;;
        *)
            echo "PART must be grid, controls, random, rbn or micro, but is '$part'" >&2
            exit 2
            ;;
    esac
    wait $!
done

bash results/keep.sh results/sampler/runs "$work"/*-seed[0-9]
