#!/usr/bin/env bash
# Shared by the scripts of this directory: the repository's root and its environment.
# Source it; it changes to the root.

cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit

say() { printf '%s\n' "$*" >&2; }
die() { say "error: $*"; exit 1; }

# Print the first Python that this project supports, or fail with the way out.
find_python() {
    local candidate
    for candidate in python3.11 python3.12 python3; do
        if command -v "$candidate" >/dev/null 2>&1 &&
            "$candidate" -c 'import sys; sys.exit(sys.version_info[:2] not in ((3, 11), (3, 12)))' \
                >/dev/null 2>&1; then
            printf '%s\n' "$candidate"
            return
        fi
    done
    die "no Python 3.11 or 3.12 found; install one (Debian: apt-get install python3-venv)"
}

# make_venv EXTRAS: make .venv, or bring it up to date with pyproject.toml, and put it first
# on the path.
# torch comes first and by exact version: an open range takes gigabytes of CUDA packages on a
# machine without a GPU.
make_venv() {
    local stamp=.venv/.installed-$1 wanted python
    wanted="$(cat pyproject.toml rbn_fairseq/version.py) $PWD"
    if [[ ! -f $stamp || $(cat "$stamp") != "$wanted" ]]; then
        if ! .venv/bin/python -m pip --version >/dev/null 2>&1; then
            python=$(find_python)
            "$python" -m venv --clear .venv ||
                die "$python cannot make a virtual environment (Debian: apt-get install python3-venv)"
        fi
        say "installing into .venv"
        .venv/bin/python -m pip install --quiet --disable-pip-version-check 'torch==2.13.0'
        .venv/bin/python -m pip install --quiet --disable-pip-version-check --editable ".${1:+[$1]}"
        printf '%s' "$wanted" >"$stamp"
    fi
    export PATH="$PWD/.venv/bin:$PATH"
}
