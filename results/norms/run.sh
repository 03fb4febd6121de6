#!/usr/bin/env bash
# Usage: bash results/norms/run.sh DATA WORK [EPOCHS]
#
# Makes the numbers of this directory: every norm in the encoder, Post- and Pre-Norm, on the same
# text with the same budget. DATA is the WORK directory of results/iwslt14_subset/run.sh (bin/,
# test.de, test.en); WORK is for checkpoints. Takes about 7 minutes a run on one core, trains two
# at a time, and goes on where it was cut off; with a greater EPOCHS (default 1) all train on.
set -euo pipefail
data=$(realpath "$1") work=$(realpath -m "$2") epochs=${3:-1}
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
export OMP_NUM_THREADS=1
export MALLOC_MMAP_THRESHOLD_=2000000000 MALLOC_TRIM_THRESHOLD_=4000000000
export data work epochs

runs='
ln
bn          --norm-encoder batch
rbn         --norm-encoder batch --rbn-mean-weight 60 --rbn-convention official
brn         --norm-encoder renorm
pn          --norm-encoder power
pn_ls       --norm-encoder groupscale+power
mabn        --norm-encoder mabn
rms         --norm-encoder rms
prms        --norm-encoder prms
group       --norm-encoder group
instance    --norm-encoder instance
dyt         --norm-encoder dyt
none        --norm-encoder none
rms_bn      --norm-encoder rms+batch
wn          --norm-encoder batch --norm-weight wn
cwn         --norm-encoder batch --norm-weight cwn
post:deepnorm  --norm-placement deepnorm
pre:sub        --norm-placement sub
'
common='--share-all-embeddings --dropout 0.1 --max-tokens 2000 --optimizer adam '
common+='--adam-betas (0.9,0.98) --lr 0.004 --lr-scheduler inverse_sqrt --warmup-updates 400 '
common+='--criterion label_smoothed_cross_entropy_rbn --label-smoothing 0.1'
# Shortened with the training, whose epoch has 852 updates; for the timing, over at once.
schedules='--norm-renorm-start 300 --norm-renorm-d-end 500 --norm-renorm-r-end 700 '
schedules+='--norm-power-warmup 400 --norm-mabn-r-start 400'
over='--norm-renorm-start 0 --norm-renorm-d-end 0 --norm-renorm-r-end 0 '
over+='--norm-power-warmup 0 --norm-mabn-window 2 --norm-mabn-warmup 0 --norm-mabn-r-start 0'

train() { # PLACEMENT NAME OPTIONS...
    local out=$work/$1-$2 arch=rbn_transformer_tiny options
    read -ra options <<<"$common $schedules"
    [[ $1 == pre ]] && arch+=_pre
    shift 2
    [[ -f $out/checkpoint$epochs.pt || -f $out/failed ]] && return
    mkdir -p "$out"
    rbn train "$data/bin" --arch "$arch" "${options[@]}" --max-epoch "$epochs" --seed 1 \
        --cpu --num-workers 0 --no-progress-bar --log-interval 100 \
        --save-dir "$out" "$@" >/dev/null 2>>"$out/train.err" && return
    touch "$out/failed" # a run that diverged is a result
    echo "$out failed, see train.err; to try again remove failed" >&2
}

score() { # RUN: every fifth sentence of the test set
    [[ -f $1/checkpoint$epochs.pt && ! -f $1/score$epochs.json ]] || return 0
    rbn generate "$work/test" -s de -t en --path "$1/checkpoint$epochs.pt" --cpu --beam 5 \
        --lenpen 1 --max-len-a 1 --max-len-b 50 --remove-bpe --max-tokens 6000 --num-workers 0 \
        >"$1/generated$epochs.txt"
    rbn score "$1/generated$epochs.txt" --lang en --json "$1/score$epochs.json" --overwrite
}
export -f train score
export common schedules

mkdir -p "$work"
if [[ ! -d $work/test ]]; then
    for lang in de en; do sed -n '1~5p' "$data/test.$lang" >"$work/fifth.$lang"; done
    fairseq-preprocess -s de -t en --testpref "$work/fifth" --destdir "$work/test" \
        --srcdict "$data/bin/dict.de.txt" --tgtdict "$data/bin/dict.en.txt"
fi

of() { # PLACEMENT: its runs, a line each
    sed -n "/^post:\|^pre:\|^$/!p; s/^$1://p" <<<"$runs"
}
for placement in post pre; do
    of "$placement" | sed "s/^/$placement /"
done | xargs -P 2 -d '\n' -I{} bash -c 'train {}'
printf '%s\n' "$work"/*-*/ | xargs -P 2 -I{} bash -c 'score {}'

for placement in post pre; do
    arch=rbn_transformer_tiny
    [[ $placement == pre ]] && arch+=_pre
    settings=()
    read -ra options <<<"$common $over"
    while read -r name own; do settings+=(--setting "$name: $own"); done < <(of "$placement")
    [[ -f $work/updates-$placement.json ]] ||
        python benchmarks/updates.py "$data/bin" "${settings[@]}" --rounds 12 --updates 2 \
            --json "$work/updates-$placement.json" -- --arch "$arch" "${options[@]}"
done

python results/norms/table.py "$work" "$epochs"
