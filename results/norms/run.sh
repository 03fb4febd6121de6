#!/usr/bin/env bash
# Usage: bash results/norms/run.sh TEXT BIN WORK SEED...
#
# Trains every norm of the encoder, site and placement on batches of 16 lengths, 4 epochs with a learning
# rate that falls to 0, two trainings at a time, a core each, measures and translates; then times their
# updates in turn. Otherwise as results/ladder/run.sh, whose TEXT, BIN and WORK are its own. About 12
# minutes a training; goes on where it was cut off.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=../ladder/steps.sh
source "$(dirname "${BASH_SOURCE[0]}")/../ladder/steps.sh"

# Schedules are shortened to the 3,408 updates: warm-ups end where the learning rate's does.
settings='
ln
bn           --norm-encoder batch
rbn          --norm-encoder batch --norm-batch-eps-mode clamp --rbn-mean-weight 60 --rbn-convention official
brn          --norm-encoder renorm --norm-renorm-start 1000 --norm-renorm-d-end 1500 --norm-renorm-r-end 2000
repbn        --norm-encoder repbn
prepbn       --norm-encoder repbn --norm-repbn-layer-end 2000
pn           --norm-encoder power --norm-power-warmup 1000
pn_ls        --norm-encoder groupscale+power --norm-power-warmup 1000
mabn         --norm-encoder mabn --norm-mabn-warmup 100 --norm-mabn-r-start 1000
un           --norm-encoder un --norm-un-warmup 1000 --norm-un-r-start 1000
rms          --norm-encoder rms
prms         --norm-encoder prms
scale        --norm-encoder scale
group        --norm-encoder group
groupscale   --norm-encoder groupscale
instance     --norm-encoder instance
dyt          --norm-encoder dyt
derf         --norm-encoder derf
none         --norm-encoder none
rms_bn       --norm-encoder rms+batch
qk           --norm-encoder layer@qk:layer --norm-decoder layer@qk:layer
qk_unit      --norm-encoder scale@qk:layer --norm-decoder scale@qk:layer
embedding    --norm-encoder layer@embedding:layer --norm-decoder layer@embedding:layer
fixnorm      --norm-unit-embeddings
wn           --norm-encoder batch --norm-weight wn
cwn          --norm-encoder batch --norm-weight cwn
deepnorm     --norm-placement deepnorm
pre_ln       --encoder-normalize-before --decoder-normalize-before
pre_bn       --encoder-normalize-before --decoder-normalize-before --norm-encoder batch
pre_repbn    --encoder-normalize-before --decoder-normalize-before --norm-encoder repbn
pre_tears    --encoder-normalize-before --decoder-normalize-before --norm-unit-embeddings --norm-small-init --norm-encoder scale --norm-decoder scale --norm-encoder-final scale --norm-decoder-final scale
pre_sub      --encoder-normalize-before --decoder-normalize-before --norm-placement sub
pre_peri     --encoder-normalize-before --decoder-normalize-before --norm-placement peri
pre_hybrid   --encoder-normalize-before --decoder-normalize-before --norm-placement hybrid
'
# Controls of fixnorm: its embeddings with LN's first values; LN's with its; LN's turned 4 times as fast;
# and LN, BN, no norm and fixnorm at other learning rates. Not timed: updates.py takes no task.
controls='
fixnorm_slow --norm-unit-embeddings --user-dir results/sampler/controls --task translation_long_embeddings
ln_short     --user-dir results/sampler/controls --task translation_short_embeddings
ln_fast      --user-dir results/sampler/controls --task translation_fast_embeddings
ln_low       --lr 0.001
ln_high      --lr 0.004
ln_higher    --lr 0.008
bn_high      --norm-encoder batch --lr 0.004
bn_higher    --norm-encoder batch --lr 0.008
none_high    --norm-encoder none --lr 0.004
fixnorm_high --norm-unit-embeddings --lr 0.004
fixnorm_higher --norm-unit-embeddings --lr 0.008
'
statistics='^(bn(_high(er)?)?|rbn|brn|p?repbn|pn|pn_ls|mabn|un|rms_bn|wn|cwn|pre_bn|pre_repbn)-' # names of those that have them

run() { # NAME OPTIONS...
    rm -f "$work/$1/crash.pt"
    train "$1" --lr-scheduler polynomial_decay --max-update 3408 --total-num-update 3408 \
        --length-mixing 16 --tid-batches 100 "${@:2}" || {
        [[ -f $work/$1/crash.pt ]] # it diverged: its row stays empty
        return
    }
    [[ ! $1 =~ $statistics ]] || cost "$1" "checkpoint$epochs.pt"
    translate "$1" score "checkpoint$epochs.pt"
    [[ ! $1 =~ ^(ln|fixnorm) ]] || python results/sampler/weights.py "$work/$1" >"$work/$1/weights.jsonl"
}

for seed in "$@"; do
    while read -r name own; do
        [[ $name ]] || continue
        read -ra options <<<"$own"
        while (($(jobs -rp | wc -l) > 1)); do wait -n; done # two at a time
        run "$name-seed$seed" --seed "$seed" "${options[@]}" &
    done <<<"$settings$controls"
done
while [[ -n $(jobs -p) ]]; do wait -n; done
bash results/keep.sh results/norms/runs "$work"/*-seed*

timed=() # with schedules that are over
over=$(sed -E 's/(warmup|start|end) [0-9]+/\1 0/g' <<<"$settings")
while read -r name own; do [[ -z $name ]] || timed+=(--setting "$name: $own"); done <<<"$over"
[[ -f $work/updates.json ]] ||
    python benchmarks/updates.py "$bin" "${timed[@]}" --rounds 12 --updates 2 --json "$work/updates.json" -- \
        --arch rbn_transformer_tiny --encoder-layers 4 --share-all-embeddings --dropout 0.1 \
        --max-tokens 2000 --length-mixing 16 --optimizer adam --lr 0.002 \
        --criterion label_smoothed_cross_entropy_rbn --label-smoothing 0.1
cp "$work/updates.json" results/norms
python results/norms/table.py results/norms/runs results/norms/updates.json
