#!/usr/bin/env bash
# Usage: bash results/sampler/run.sh TEXT BIN WORK PART SEED...
#
# Trains and measures a part of the experiment for each seed, two trainings at a time, a core each;
# otherwise as results/ladder/run.sh, whose TEXT, BIN and WORK are its own. Goes on where it was cut off.
#
#   grid       layer norm and batch norm, on fairseq's batches and on those of 16 buckets; 12 epochs with a
#              learning rate that falls to 0, as all the others. Two hours and a half a seed.
#   controls   layer norm: fairseq's batches, every token of equal weight; 16 buckets, composed once
#   none       no norm in the encoder, on fairseq's batches and on those of 16 buckets
#   fixnorm    embeddings of unit length, with layer norm and with batch norm, on 16 buckets; and with layer
#              norm on fairseq's batches
#   rate       layer norm, batch norm, and layer norm with embeddings of unit length, on 16 buckets, at half
#              the learning rate and at twice that
#   random     layer norm and batch norm on batches of random sentences
#   rbn        RBN on fairseq's batches and on those of 16 buckets
#   micro      the grid's four with four micro-batches of a quarter an update, 4 epochs, 3,788 updates
#   eight      the grid's four with eight batches an update, as eight GPUs have them: 1,284 updates
#   pre        the grid's four in Pre-Norm
#   tatoeba    the grid's four on other TEXT and BIN, of tatoeba.py: 8 epochs, 7,640 updates
#   large      the grid's four with 6 + 6 layers of width 256
#   late       on 16 buckets: batch norm in the lower two layers, and behind RMS norm
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=../ladder/steps.sh
source "$(dirname "${BASH_SOURCE[0]}")/../ladder/steps.sh"

part=$1
shift
epochs=12 updates=10224
case $part in
    micro) epochs=4 updates=3788 ;; # epochs: of which checkpoint ends the training
    eight) updates=1284 ;;
    tatoeba) epochs=8 updates=7640 ;;
esac

translations() { # NAME
    local run=$work/$1 subset
    [[ -f $run/translations.json ]] && return
    for subset in valid test; do
        rbn generate "$bin" --path "$run/checkpoint$epochs.pt" --gen-subset "$subset" --cpu --beam 5 \
            --nbest 5 --lenpen 1 --max-len-a 1 --max-len-b 50 --remove-bpe --max-tokens 6000 \
            --num-workers 0 >"$run/$subset.txt"
    done
    rbn score "$run/test.txt" --lang en --reference "$text/test.en" --json "$run/score.json" --overwrite
    python results/sampler/translations.py "$run"/{valid,test}.txt "$text" >"$run/translations.part"
    mv "$run"/translations.{part,json}
}

run() { # NAME OPTIONS...
    train "$1" --lr-scheduler polynomial_decay --max-update "$updates" --total-num-update "$updates" "${@:2}"
    if [[ ! $1 =~ ^(ln|none|fixln)- ]]; then
        if ((epochs == 12)); then cost "$1" checkpoint{4,8,12}.pt; else cost "$1" "checkpoint$epochs.pt"; fi
    fi
    if [[ ! -f $work/$1/weights.jsonl ]]; then
        python results/sampler/weights.py "$work/$1" >"$work/$1/weights.part"
        mv "$work/$1"/weights.{part,jsonl}
    fi
    translations "$1"
}

pair() { # SUFFIX OPTIONS...: layer norm and batch norm, for the seed
    run "ln-$1-seed$seed" --seed "$seed" "${@:2}" &
    run "bn-$1-seed$seed" --seed "$seed" "${batch[@]}" "${@:2}"
    wait $!
}

four() { # SUFFIX OPTIONS...: the grid
    pair "mixing16$1" --length-mixing 16 "${@:2}"
    pair "sorted$1" "${@:2}"
}

ablation() { # NAME: of statistics by groups of tokens
    if [[ ! -f $work/$1/ablation.jsonl ]]; then
        python results/sampler/ablation.py "$work/$1" checkpoint{4,12}.pt >"$work/$1/ablation.part"
        mv "$work/$1"/ablation.{part,jsonl}
    fi
}

controls=(--user-dir results/sampler/controls)
equal=("${controls[@]}" --criterion equal_weights --mean-tokens 1608.4) # the log's wpb
once=("${controls[@]}" --task translation_one_composition --length-mixing 16)
pre=(--encoder-normalize-before --decoder-normalize-before)
large=()
for side in encoder decoder; do
    large+=("--$side-layers" 6 "--$side-embed-dim" 256 "--$side-ffn-embed-dim" 1024)
done

for seed in "$@"; do
    case $part in
        grid)
            four ""
            ablation "bn-mixing16-seed$seed" &
            ablation "bn-sorted-seed$seed"
            wait $!
            ;;
        controls)
            run "ln-equal-seed$seed" --seed "$seed" "${equal[@]}" &
            run "ln-once-seed$seed" --seed "$seed" "${once[@]}"
            wait $!
            ;;
        none)
            run "none-mixing16-seed$seed" --seed "$seed" --norm-encoder none --length-mixing 16 &
            run "none-sorted-seed$seed" --seed "$seed" --norm-encoder none
            wait $!
            ;;
        fixnorm)
            fixnorm=(--seed "$seed" --norm-unit-embeddings)
            run "fixln-mixing16-seed$seed" "${fixnorm[@]}" --length-mixing 16 &
            run "fixbn-mixing16-seed$seed" "${fixnorm[@]}" --length-mixing 16 "${batch[@]}"
            wait $!
            run "fixln-sorted-seed$seed" "${fixnorm[@]}"
            ;;
        rate)
            for rate in low:0.001 high:0.004; do
                mixed=(--length-mixing 16 --lr "${rate#*:}")
                pair "mixing16-${rate%:*}" "${mixed[@]}"
                run "fixln-mixing16-${rate%:*}-seed$seed" --seed "$seed" --norm-unit-embeddings "${mixed[@]}"
            done
            ;;
        random) pair random --length-mixing random ;;
        rbn)
            run "rbn-sorted-seed$seed" --seed "$seed" "${penalty[@]}" &
            run "rbn-mixing16-seed$seed" --seed "$seed" "${penalty[@]}" --length-mixing 16
            wait $!
            ;;
        micro) four -micro --max-tokens 500 --update-freq 4 ;;
        eight) four -eight --update-freq 8 --warmup-updates 200 ;;
        pre) four -pre "${pre[@]}" ;;
        tatoeba) four -tatoeba ;;
        large) four -large "${large[@]}" ;;
        late)
            late=(--seed "$seed" --tid-batches 100 --length-mixing 16)
            run "lower2-mixing16-seed$seed" "${late[@]}" --norm-encoder batch@0-1:layer &
            run "rmsbatch-mixing16-seed$seed" "${late[@]}" --norm-encoder rms+batch
            wait $!
            ;;
        *)
            echo "PART must be grid, controls, none, fixnorm, rate, random, rbn, micro, eight, pre, tatoeba, large or late, but is '$part'" >&2
            exit 2
            ;;
    esac
done

bash results/keep.sh results/sampler/runs "$work"/*-seed*
