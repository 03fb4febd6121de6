#!/usr/bin/env bash
# Usage: bash scripts/test.sh [--all] [--cpu default|avx2] [PYTEST ARGUMENTS]
#
# Makes .venv if there is none, then runs ruff, mypy, shellcheck and the tests of the tiers core and
# integration. Needs Python 3.11 or 3.12; PYTHON=python3.12 chooses one.
#
#   --all                also the nightly tier: fuzz, kills, damaged files, every norm in training
#   --cpu default|avx2   compute as an older processor would: torch's kernels without vector
#                        instructions, or with AVX2 alone. Tests must not depend on the processor.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

help_if_asked "$@"
tiers=(-m "core or integration")
if [[ ${1:-} == --all ]]; then
    tiers=()
    shift
fi
case ${1:-} in
    --cpu)
        [[ ${2:-} == default || ${2:-} == avx2 ]] || die "--cpu must be default or avx2"
        # torch's own kernels, and its libraries for matrix products, which have no lower setting.
        export ATEN_CPU_CAPABILITY=$2 MKL_ENABLE_INSTRUCTIONS=AVX2 ONEDNN_MAX_CPU_ISA=AVX2
        shift 2
        ;;
esac

make_venv test
ruff check .
ruff format --check .
mypy
shellcheck scripts/*.sh scripts/*/*.sh results/*.sh results/*/*.sh .ci/run
pytest --numprocesses auto --dist loadscope --no-loadscope-reorder "${tiers[@]}" "$@"
