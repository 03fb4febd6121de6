#!/usr/bin/env bash
# Usage: bash results/iwslt14_subset/run.sh TEXT WORK
#
# Makes the numbers of this directory. TEXT holds train, valid and test as .de and .en, tokenised
# and lower-cased as fairseq's prepare-iwslt14.sh does; WORK is for data and checkpoints. Takes
# about 4.5 minutes an epoch and run on one core, and goes on where it was cut off.
set -euo pipefail
text=$(realpath "$1")
mkdir -p "$2" && work=$(realpath "$2")
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
export OMP_NUM_THREADS=1
export MALLOC_MMAP_THRESHOLD_=2000000000 MALLOC_TRIM_THRESHOLD_=4000000000

if [[ ! -d $work/bin ]]; then
    subword-nmt learn-joint-bpe-and-vocab --input "$text"/train.{de,en} -s 3600 \
        -o "$work/code" --write-vocabulary "$work"/vocab.{de,en}
    for part in {train,valid,test}.{de,en}; do
        subword-nmt apply-bpe -c "$work/code" <"$text/$part" >"$work/$part"
    done
    rm -rf "$work/bin.part"
    fairseq-preprocess -s de -t en --trainpref "$work/train" --validpref "$work/valid" \
        --testpref "$work/test" --destdir "$work/bin.part" --joined-dictionary
    mv "$work"/bin{.part,}
fi

train() { # NAME OPTIONS...
    local out=$work/$1
    shift
    mkdir -p "$out"
    rbn train "$work/bin" --arch rbn_transformer_tiny --share-all-embeddings --dropout 0.1 \
        --criterion label_smoothed_cross_entropy_rbn --label-smoothing 0.1 \
        --optimizer adam --adam-betas '(0.9, 0.98)' \
        --lr 0.004 --lr-scheduler inverse_sqrt --warmup-updates 400 \
        --max-tokens 2000 --max-epoch 10 --seed 1 --cpu --num-workers 0 \
        --no-progress-bar --log-interval 100 --save-dir "$out" "$@" >/dev/null
    rbn generate "$work/bin" --path "$out/checkpoint_last.pt" --cpu --beam 5 --lenpen 1 \
        --max-len-a 1 --max-len-b 50 --remove-bpe --max-tokens 6000 --num-workers 0 \
        >"$out/generated.txt"
    rbn score "$out/generated.txt" --lang en --reference "$text/test.en" --json "$out/score.json" --overwrite
}

train ln
train bn --norm-encoder batch
train rbn_paper --norm-encoder batch --rbn-mean-weight 0.1 --rbn-std-weight 0.01
train rbn_official --norm-encoder batch --rbn-mean-weight 60 --rbn-convention official

bash results/measure.sh "$work/bn" checkpoint10.pt
bash results/measure.sh "$work/rbn_official" checkpoint10.pt

bash results/keep.sh results/iwslt14_subset/runs "$work"/{ln,bn,rbn_paper,rbn_official}
rbn report results/iwslt14_subset/runs/* --output "$work/report" \
    --title "IWSLT14 De-En, 48.8k-pair subset"
cp "$work"/report/figures/{figure1,figure4,batching,cost}.png results/iwslt14_subset
