#!/usr/bin/env bash
# Usage: bash results/keep.sh DESTINATION RUN_DIR...
#
# Copies what `rbn report` reads of runs, small enough to be committed: run.json, measurements, and
# of the training's log the ends of epochs, and where it began; without this machine's paths.
set -euo pipefail
destination=$1
shift
for run in "$@"; do
    to=$destination/$(basename "$run")
    mkdir -p "$to"
    ends="INFO \| [^|. ]+ \| (epoch|\{)"
    begins="are counted anew|fairseq.trainer \| (Loaded|No existing) checkpoint"
    grep -E "$ends|$begins|fairseq_cli.train \| done training" "$run/train.log" |
        grep -v "| train_inner |" |
        sed -E 's#(Loaded checkpoint |checkpoint found )[^ ]*/#\1#' >"$to/train.part" || true
    if ! grep -qE "$ends" "$to/train.part"; then
        rm "$to/train.part"
        rmdir --ignore-fail-on-non-empty "$to"
        echo "$run: no epoch has ended, nothing is kept" >&2
        continue
    fi
    mv "$to/train.part" "$to/train.log"
    if [[ -f $run/run.json ]]; then # a path's last two parts; no address of a host, no command
        sed -E -e '/^ *"command": /d' -e 's|"/[^"]*/([^"/]+/[^"/]+)"|"\1"|g' -e 's|"tcp://[^"]*"|null|g' "$run/run.json" >"$to/run.json"
    fi
    for file in tid conditioning tid_batching cost multipliers ablation weights last_batches; do
        if [[ -f $run/$file.jsonl ]]; then
            sed -E 's|"checkpoint": "[^"]*/([^"/]+)"|"checkpoint": "\1"|' "$run/$file.jsonl" >"$to/$file.jsonl"
        fi
    done
    if [[ -f $run/translations.json ]]; then
        cp "$run/translations.json" "$to"
    fi
    for file in score score_averaged_statistics; do
        if [[ -f $run/$file.json ]]; then
            sed -E 's|"against": "[^"]*/([^"/]+/[^"/]+)"|"against": "\1"|' "$run/$file.json" >"$to/$file.json"
        fi
    done
done
