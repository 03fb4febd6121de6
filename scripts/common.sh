#!/usr/bin/env bash
# Shared by the scripts of this directory: the repository's root and its environment.
# Source it; it changes to the root, and keeps in $caller where it was called, in $script by what.

caller=$PWD script=$(realpath "$0")
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit

say() { printf '%s\n' "$*" >&2; }
die() { say "error: $*"; exit 1; }

# usage: print the comment at the script's top.
usage() { sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//p}' "$script"; }

# help_if_asked ARGUMENT...: print the usage and end, where -h or --help is among them.
help_if_asked() {
    if [[ " $* " == *" -h "* || " $* " == *" --help "* ]]; then
        usage
        exit 0
    fi
}

# supported PYTHON: whether it is a Python that this project supports.
supported() {
    command -v "$1" >/dev/null 2>&1 &&
        "$1" -c 'import sys; sys.exit(sys.version_info[:2] not in ((3, 11), (3, 12)))' \
            >/dev/null 2>&1
}

# Print $PYTHON, or the first Python that this project supports, or fail with the way out.
find_python() {
    local candidate
    if [[ ${PYTHON:-} ]]; then
        supported "$PYTHON" || die "PYTHON=$PYTHON is no Python 3.11 or 3.12"
        printf '%s\n' "$PYTHON"
        return
    fi
    for candidate in python3.11 python3.12 python3; do
        if supported "$candidate"; then
            printf '%s\n' "$candidate"
            return
        fi
    done
    die "no Python 3.11 or 3.12 found; install one (Debian: apt-get install python3-venv)"
}

# python_of PYTHON: its version, 3.11 or 3.12; nothing if it does not run.
python_of() { "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null || true; }

pip_install() { .venv/bin/python -m pip install --quiet --disable-pip-version-check "$@"; }

# Install torch, by exact version, so that a build that is there already stays. Without a GPU
# driver that is the build for CPUs, where PyTorch's own index can be reached.
install_torch() {
    local torch='torch==2.13.0' cpu=https://download.pytorch.org/whl/cpu
    if .venv/bin/python -c 'import torch, sys; sys.exit(not torch.__version__.startswith("2.13.0"))' \
        2>/dev/null; then
        return
    fi
    if command -v nvidia-smi >/dev/null; then
        say "installing torch with CUDA: 2.7 GB to download, 5 GB on disk, some minutes"
        pip_install "$torch"
    elif .venv/bin/python -c "import urllib.request as u; u.urlopen('$cpu/torch/', timeout=10)" \
        2>/dev/null; then
        say "no GPU driver (nvidia-smi): installing torch's build for CPUs, 190 MB to download, half a minute"
        pip_install --index-url "$cpu" "$torch"
    else
        say "no GPU driver (nvidia-smi), but $cpu cannot be reached: installing the torch that pip finds;"
        say "from PyPI that is the one with CUDA, 2.7 GB to download, 5 GB on disk, some minutes"
        pip_install "$torch"
    fi
}

# make_venv EXTRAS: make .venv, or bring it up to date with pyproject.toml and $PYTHON, and put it
# first on the path.
make_venv() {
    local stamp wanted python has='' found=
    wanted="$(cat pyproject.toml rbn_fairseq/version.py) $PWD"
    if .venv/bin/python -c '' 2>/dev/null; then # one of yours, perhaps, which is not wiped
        .venv/bin/python -m pip --version &>/dev/null || .venv/bin/python -m ensurepip &>/dev/null ||
            die "there is no pip in .venv: install it there, or remove .venv"
        has=$(python_of .venv/bin/python)
    fi
    if [[ ! $has ]] || [[ ${PYTHON:-} && $(python_of "$(find_python)") != "$has" ]]; then
        python=$(find_python)
        "$python" -m venv --clear .venv ||
            die "$python cannot make a virtual environment (Debian: apt-get install python3-venv)"
    fi
    for stamp in .venv/.installed-"$1"*; do # with other extras it does where none are asked for
        [[ -f $stamp && $(cat "$stamp") == "$wanted" ]] && found=yes
    done
    if [[ ! $found ]]; then
        say "installing into .venv"
        install_torch
        say "installing fairseq and the other packages: 130 MB to download, a minute"
        pip_install --editable ".${1:+[$1]}"
        printf '%s' "$wanted" >".venv/.installed-$1"
    fi
    export PATH="$PWD/.venv/bin:$PATH"
}

# Use the environment that is active where this package is installed in it, or make .venv.
use_environment() {
    command -v rbn >/dev/null || make_venv ""
}

# set_places BENCHMARK: where its data and runs are, in $data and $runs: in the repository, unless DATA
# and RUNS say otherwise, as seen by the caller, to whom it changes back.
set_places() {
    data=${DATA:-$PWD/data/$1/bin} runs=${RUNS:-$PWD/runs/$1}
    use_environment
    cd "$caller" || exit
}

# call_for_seeds VERB BENCHMARK NORM PLACEMENT SEED... [OPTIONS]: `rbn train` or `rbn evaluate`, a run
# a seed. A signal to the script ends the run of the moment, too; Ctrl-Z stops the script alone.
call_for_seeds() {
    local seeds=() seed run words verb=$1 benchmark=$2 norm=${3:-} placement=${4:-}
    [[ ${5:-} =~ ^[0-9]+$ ]] || die "give NORM PLACEMENT SEED..., and options behind them: see --help"
    shift 4
    while [[ ${1:-} =~ ^[0-9]+$ ]]; do
        seeds+=("$1")
        shift
    done
    set_places "$benchmark"
    set -m # a run and its processes are a group
    for seed in "${seeds[@]}"; do
        run=$runs/$placement-$norm-seed$seed
        words=(evaluate "$run")
        if [[ $verb == train ]]; then
            words=(train "$data" --recipe "${benchmark}_$placement" --norm "$norm" --seed "$seed"
                --save-dir "$run")
        fi
        rbn "${words[@]}" "$@" &
        trap 'kill -- -$!; wait -f $!' INT TERM HUP
        wait -f $! # not only until it is paused
    done
}

# call_table BENCHMARK: `rbn table` of all its runs.
call_table() {
    set_places "$1"
    exec rbn table "$runs"/*/
}

# call_prepare BENCHMARK ARGUMENT...: `rbn prepare` where the caller is, to data/BENCHMARK if no
# --output says otherwise.
call_prepare() {
    local output=$PWD/data/$1
    use_environment
    cd "$caller" || exit
    exec rbn prepare "$1" --output "$output" "${@:2}" # of two, the last counts
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
