#!/usr/bin/env bash
# Usage: bash scripts/iwslt14/grid.sh --minutes N --parallel P [PLACEMENT SEED]
#                                     [OPTIONS] [-- HYDRA OVERRIDES]
#
# The paper's grid of penalty weights (Figure 5), lambda and nu in
# {0, 0.01, 0.1, 1}, on one machine and within N minutes. A cell is one run with
# one pair of weights, trained and evaluated; P cells run at a time, row by row
# (a row is one lambda). A cell that would not be finished in time, judged by
# the longest one so far, is not begun. What still runs when the time is over is
# stopped; the same command goes on with it. Rows whose cells are all finished
# go to report/, beside the cells: a page with curves, and the numbers as CSV.
#
#   PLACEMENT SEED   post or pre, and a number (post 1)
#   --minutes N      how long it may take; a fraction is allowed
#   --parallel P     cells at a time; one small model leaves most of a GPU idle
#   --gpus G         GPUs to spread the cells over (1)
#   --runs DIR       where cells and report/ go, in PLACEMENT-seedSEED
#                    (runs/iwslt14-grid; with --preset, runs/iwslt14-grid-PRESET)
#   --max-epoch N, --preset NAME, --data DIR, --dry-run, -- OVERRIDES
#                    as for train.sh
#
#   bash scripts/iwslt14/grid.sh --minutes 600 --parallel 8
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=../benchmark.sh
source "$(dirname "${BASH_SOURCE[0]}")/../benchmark.sh"

suffix=-grid
read_arguments "--minutes --parallel --gpus --data --runs --preset --max-epoch --" "$@"
((BASH_VERSINFO[0] * 100 + BASH_VERSINFO[1] >= 501)) || die "grid.sh needs bash 5.1 or newer"
[[ $minutes && $parallel ]] || die "grid.sh needs --minutes and --parallel; --help tells more"
((${#arguments[@]} > 0)) || arguments=(post 1)
((${#arguments[@]} == 2)) || die "give PLACEMENT and one SEED, or neither; a grid has one seed"
arguments=(rbn "${arguments[@]}")
read_runs
check_data
[[ $dry_run ]] || use_environment

weights=(0 0.01 0.1 1)
grid=$runs/$placement-seed${seeds[0]}
options=(--data "$data" ${preset:+--preset "$preset"} ${max_epoch:+--max-epoch "$max_epoch"})
options+=(${dry_run:+--dry-run})
# One cell: LAMBDA NU, arguments of train.sh and evaluate.sh, --, Hydra's overrides.
# shellcheck disable=SC2016 # expanded by the shell of the cell
cell='weights=(criterion.rbn_mean_weight="$1" criterion.rbn_std_weight="$2") arguments=()
    shift 2
    while [[ $1 != -- ]]; do arguments+=("$1") && shift; done
    bash scripts/iwslt14/train.sh "${arguments[@]}" "$@" "${weights[@]}" &&
        bash scripts/iwslt14/evaluate.sh "${arguments[@]}"'
settings=$(quoted "${options[@]}" "${overrides[@]}")
if [[ ! $dry_run ]]; then
    [[ ! -f $grid/settings || $(<"$grid/settings") == "$settings" ]] ||
        die "the cells in $grid have other settings: $(<"$grid/settings"). Choose other --runs"
    mkdir -p "$grid"
    echo "$settings" >"$grid/settings"
fi
IFS=, read -ra devices <<<"${CUDA_VISIBLE_DEVICES-$(seq -s , 0 $((gpus - 1)))}"
((${#devices[@]})) || devices=('') gpus=1 # hidden
((${#devices[@]} >= gpus)) || die "--gpus $gpus, but CUDA_VISIBLE_DEVICES has ${#devices[@]}"

run_of() { echo "$grid/mean$1-std$2/$placement-rbn-seed${seeds[0]}"; } # LAMBDA NU

declare -A name begun
longest=0 number=0 deadline=$((SECONDS + $(awk "BEGIN { print int(60 * $minutes) }")))

# Wait for one cell, and say how it ended.
reap() {
    local pid status=0 seconds
    wait -n -p pid || status=$?
    seconds=$((SECONDS - begun[$pid]))
    case $status in
        0)
            say "${name[$pid]}: done in $seconds s"
            longest=$((seconds > longest ? seconds : longest))
            ;;
        124) say "${name[$pid]}: stopped, the time is over; the next call goes on with it" ;;
        *) say "${name[$pid]}: failed, exit status $status; see $grid/${name[$pid]}/log" ;;
    esac
}

# `timeout` hands it on to its children.
trap 'jobs -p | xargs --no-run-if-empty kill' EXIT

for mean in "${weights[@]}"; do
    for std in "${weights[@]}"; do
        [[ -f $(run_of "$mean" "$std")/score.json ]] && continue
        directory=$(dirname "$(run_of "$mean" "$std")")
        arguments=("$mean" "$std" rbn "$placement" "${seeds[0]}" "${options[@]}" --runs "$directory")
        arguments+=(-- "${overrides[@]}")
        if [[ $dry_run ]]; then
            bash -c "$cell" cell "${arguments[@]}"
            continue
        fi
        # More than once where one that `wait` returns ended long ago.
        while (($(jobs -rp | wc -l) >= parallel)); do reap; done
        left=$((deadline - SECONDS))
        if ((left <= longest)); then
            say "$(basename "$directory"): not begun; $left s left, the longest cell took $longest s"
            continue
        fi
        mkdir -p "$directory"
        CUDA_VISIBLE_DEVICES=${devices[number % gpus]} \
            timeout "$left" bash -c "$cell" cell "${arguments[@]}" >"$directory/log" 2>&1 &
        name[$!]=$(basename "$directory") begun[$!]=$SECONDS
        ((number += 1))
    done
done
[[ ! $dry_run ]] || exit 0
while [[ $(jobs -p) ]]; do reap; done

whole=()
for mean in "${weights[@]}"; do
    row=()
    for std in "${weights[@]}"; do
        run=$(run_of "$mean" "$std")
        [[ -f $run/score.json ]] && row+=("mean$mean-std$std=$run")
    done
    if ((${#row[@]} == ${#weights[@]})); then
        whole+=("${row[@]}")
    else
        say "row lambda = $mean: ${#row[@]} of ${#weights[@]} cells; the same command goes on"
    fi
done
((${#whole[@]})) || die "no row of the grid is whole yet"
rbn report "${whole[@]}" --output "$grid/report" --title "Penalty weights, $placement, seed ${seeds[0]}"
