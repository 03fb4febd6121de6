# Sourced by run.sh and those of ../longer, ../mixing and ../pre_norm with their arguments TEXT BIN WORK SEED...,
# of which the seeds are left: the steps of all, which do nothing where WORK has their output.
# shellcheck shell=bash
text=$(realpath "$1") bin=$(realpath "$2")
work=$3/$(basename "$(dirname "$(realpath "$0")")") # names of runs are those of others
mkdir -p "$work" && work=$(realpath "$work")
shift 3
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit
export OMP_NUM_THREADS=1
export MALLOC_MMAP_THRESHOLD_=2000000000 MALLOC_TRIM_THRESHOLD_=4000000000
export MALLOC_TOP_PAD_=200000000

epochs=4
batch=(--norm-encoder batch --tid-batches 100)
# shellcheck disable=SC2034 # of the scripts that source this
bins=("${batch[@]}" --norm-batch-length-bins 16)
# shellcheck disable=SC2034
penalty=(
    "${batch[@]}" --norm-batch-eps-mode clamp --rbn-mean-weight 60 --rbn-convention official
)

train() { # NAME OPTIONS...
    local out=$work/$1
    shift
    [[ -f $out/checkpoint$epochs.pt ]] && return
    mkdir -p "$out"
    rbn train "$bin" --arch rbn_transformer_tiny --encoder-layers 4 --share-all-embeddings \
        --dropout 0.1 --criterion label_smoothed_cross_entropy_rbn --label-smoothing 0.1 \
        --optimizer adam --adam-betas '(0.9, 0.98)' \
        --lr 0.002 --lr-scheduler inverse_sqrt --warmup-updates 1000 \
        --max-tokens 2000 --max-epoch "$epochs" --cpu --num-workers 0 \
        --no-progress-bar --log-interval 100 --save-dir "$out" "$@" >/dev/null
}

cost() { # NAME CHECKPOINT...
    local run=$work/$1
    shift
    [[ -f $run/cost.jsonl ]] || (cd "$run" && rbn cost "$@" --json cost.jsonl)
}

translate() { # NAME OUTPUT CHECKPOINT OPTIONS...
    local run=$work/$1 out=$work/$1/$2
    [[ -f $out.json ]] && return
    rbn generate "$bin" --path "$run/$3" --cpu --beam 5 --lenpen 1 --max-len-a 1 \
        --max-len-b 50 --remove-bpe --max-tokens 6000 --num-workers 0 "${@:4}" >"$out.txt"
    rbn score "$out.txt" --lang en --reference "$text/test.en" --json "$out.json"
}

recalibrate() { # NAME OUTPUT OPTIONS...
    local run=$work/$1 out=$2.pt
    [[ -f $run/$out ]] ||
        rbn recalibrate "$run/checkpoint4.pt" --data "$bin" --output "$run/$out" "${@:3}"
    translate "$1" "$2" "$out"
}
