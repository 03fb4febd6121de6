#!/usr/bin/env bash
# Usage: bash results/longer/run.sh TEXT BIN WORK SEED...
#
# Goes on to epoch 8, for each seed, with layer norm, batch norm and RBN of results/ladder/run.sh, and
# measures them; TEXT, BIN and WORK are its own, and that script must have run. Takes about two hours
# a seed on one core, and goes on where it was cut off.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=../ladder/steps.sh
source "$(dirname "${BASH_SOURCE[0]}")/../ladder/steps.sh"

epochs=8
go_on() { # NAME OPTIONS...
    local from=${work%/*}/ladder/$1 to=$work/long-$1
    if [[ ! -d $to ]]; then
        rm -rf "$to.part"
        mkdir "$to.part"
        cp "$from"/{checkpoint_{last,best}.pt,*.jsonl,train.log} "$to.part"
        mv "$to.part" "$to"
    fi
    train "long-$1" "${@:2}"
}

cost_more() { # NAME CHECKPOINT...
    cd "$work/$1" || return
    if [[ ! -f later.jsonl ]]; then
        rbn cost "${@:2}" --json later.jsonl
        cat later.jsonl >>cost.jsonl
    fi
    cd - >/dev/null || return
}

for seed in "$@"; do
    go_on "ln-seed$seed" --seed "$seed"
    go_on "bn-seed$seed" --seed "$seed" "${bins[@]}"
    go_on "rbn-seed$seed" --seed "$seed" "${penalty[@]}"
    cost_more "long-bn-seed$seed" checkpoint{5..8}.pt
    cost_more "long-rbn-seed$seed" checkpoint8.pt
    for run in ln bn rbn; do
        translate "long-$run-seed$seed" score checkpoint8.pt
    done
    translate "long-bn-seed$seed" global checkpoint8.pt --model-overrides "{'norm_batch_length_bins': 1}"
    for run in ln bn; do
        averaged=$work/long-$run-seed$seed/average.pt
        [[ -f $averaged ]] || rbn average "${averaged%/*}" --last 4 --output "$averaged"
    done
    (cd "$work/long-bn-seed$seed" && { [[ -f average.jsonl ]] || rbn cost average.pt --json average.jsonl; })
    validated=$work/long-ln-seed$seed/average.txt
    [[ -f $validated ]] ||
        fairseq-validate "$bin" --user-dir "$(rbn user-dir)" --task translation_rbn --cpu \
            --path "${validated%.txt}.pt" --valid-subset valid --max-tokens 6000 --num-workers 0 >"$validated"
done

bash results/keep.sh results/longer/runs "$work"/long-{ln,bn,rbn}-seed[0-9]
for run in "$work"/long-bn-seed[0-9]; do
    cp "$run"/{global.json,average.jsonl} "results/longer/runs/$(basename "$run")"
done
rbn report results/longer/runs/* --output "$work/report-longer" \
    --title "IWSLT14 De-En, 48.8k-pair subset, longer trainings"
cp "$work"/report-longer/figures/{figure1,figure4}.png results/longer
python results/cost_by_epoch.py longer
