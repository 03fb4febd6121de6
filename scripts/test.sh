#!/usr/bin/env bash
# Usage: bash scripts/test.sh [PYTEST ARGUMENTS]
#
# Makes .venv if there is none, then runs ruff, mypy, shellcheck and pytest.
# Needs Python 3.11 or 3.12.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

if [[ ${1:-} == -h || ${1:-} == --help ]]; then
    usage scripts/test.sh
    exit 0
fi

make_venv test
ruff check .
ruff format --check .
mypy
shellcheck scripts/*.sh scripts/*/*.sh results/*.sh results/*/*.sh .ci/run
pytest --numprocesses auto --dist loadscope --no-loadscope-reorder "$@"
