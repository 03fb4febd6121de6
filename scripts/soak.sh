#!/usr/bin/env bash
# Usage: bash scripts/soak.sh --minutes N [--seed S] [--fuzz EXAMPLES]
#
# Looks for what the tests may have missed, by chance and for long: damaged checkpoints, fuzz tests
# (EXAMPLES for each, 100 by default), several processes against one, and, for N minutes,
# trainings that are killed and resumed. Prints counts; exit status 1 if anything differs. The same
# seed tries the same; it is drawn if none is given.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

help_if_asked "$@"
minutes='' seed=$RANDOM fuzz=100
while (($#)); do
    case $1 in
        --minutes | --seed | --fuzz)
            [[ ${2:-} =~ ^[0-9]+$ || $1 == --minutes && ${2:-} =~ ^[0-9]+\.[0-9]+$ ]] ||
                die "$1 needs a number; --help tells more"
            printf -v "${1#--}" %s "$2"
            shift 2
            ;;
        *) die "unknown argument $1; --help tells more" ;;
    esac
done
[[ $minutes ]] || die "--minutes is missing; --help tells more"

make_venv test
export PYTHONWARNINGS=ignore PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"
wrong=0
# part NAME COMMAND...: run a part, print its counts and its seconds.
part() {
    local name=$1 log counts status=0 start=$SECONDS
    shift
    log=$(mktemp)
    "$@" >"$log" 2>&1 || status=$?
    counts=$(grep -E '^\{|[0-9]+ (passed|failed)' "$log" | paste -sd ' ' || true)
    printf '%-22s %s (%d s)\n' "$name" "$counts" $((SECONDS - start))
    if ((status)); then
        wrong=1
        say "$name failed:"
        tail -n 50 "$log" >&2
    fi
    rm -f "$log"
}

printf "commit %s, seed %s\n" "$(git rev-parse --short HEAD)" "$seed"
export RBN_SEED=$seed PYTEST_ADDOPTS="-o faulthandler_timeout=0" # they take as long as they are told
part "damaged checkpoints" env RBN_DAMAGED_FILES=5000 \
    pytest -n 0 -s tests/checkpoints/test_corruption.py
part "fuzz tests" env RBN_FUZZ_EXAMPLES="$fuzz" pytest -n 0 --hypothesis-seed "$seed" tests/fuzz
part "several processes" pytest -n 0 -W ignore tests/distributed
part "interrupted trainings" env RBN_SOAK_MINUTES="$minutes" \
    pytest -n 0 -s tests/end_to_end/test_interruption.py
exit "$wrong"
