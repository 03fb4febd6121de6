#!/usr/bin/env bash
# Shared by the scripts of this directory: the repository's root and its environment.
# Source it; it changes to the root, and keeps in $caller where it was called.

caller=$PWD
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit

say() { printf '%s\n' "$*" >&2; }
die() { say "error: $*"; exit 1; }

# usage SCRIPT: print the comment at its top.
usage() { sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//p}' "$1"; }

# from_caller PATH: print the path that the caller meant, as seen from the root.
from_caller() {
    if [[ $1 == /* || $caller -ef . ]]; then
        printf '%s\n' "$1"
    else
        printf '%s\n' "$caller/$1"
    fi
}

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
# torch comes first and by exact version, so that a build for CPUs that is there already stays.
make_venv() {
    local stamp wanted python found=
    wanted="$(cat pyproject.toml rbn_fairseq/version.py) $PWD"
    for stamp in .venv/.installed-"$1"*; do # with other extras it does where none are asked for
        [[ -f $stamp && $(cat "$stamp") == "$wanted" ]] && found=yes
    done
    if [[ ! $found ]]; then
        if ! .venv/bin/python -m pip --version >/dev/null 2>&1; then
            python=$(find_python)
            "$python" -m venv --clear .venv ||
                die "$python cannot make a virtual environment (Debian: apt-get install python3-venv)"
        fi
        say "installing into .venv"
        .venv/bin/python -m pip install --quiet --disable-pip-version-check 'torch==2.13.0'
        .venv/bin/python -m pip install --quiet --disable-pip-version-check --editable ".${1:+[$1]}"
        printf '%s' "$wanted" >".venv/.installed-$1"
    fi
    export PATH="$PWD/.venv/bin:$PATH"
}

# Use the environment that is active where this package is installed in it, or make .venv.
use_environment() {
    command -v rbn >/dev/null || make_venv ""
}

# download ADDRESS FILE: fetch it with retries, going on where an earlier call was cut off; FILE is
# there only when it is whole.
download() {
    local status=0 part=$2.unfinished
    local fetch=(curl --fail --location --retry 5 --retry-connrefused --connect-timeout 30)
    [[ ! -f $2 ]] || return 0
    command -v curl >/dev/null || die "no curl here to download $1; do it by hand, to $2"
    mkdir -p "$(dirname "$2")"
    say "downloading $1"
    "${fetch[@]}" --continue-at - --output "$part" "$1" || status=$?
    if [[ -s $part && ($status == 22 || $status == 33) ]]; then # nothing to go on with
        status=0
        "${fetch[@]}" --output "$part" "$1" || status=$?
    fi
    ((status == 0)) || die "the download of $1 failed; the same command goes on where it stopped"
    mv "$part" "$2"
}
