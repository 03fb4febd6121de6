#!/usr/bin/env bash
# Shared by train.sh, evaluate.sh and table.sh of the benchmarks: their options, and the commands
# that train and evaluate one run. Source it; the directory of the script names the benchmark.
benchmark=$(basename "$(cd "$(dirname "${BASH_SOURCE[1]}")" && pwd)")
# shellcheck source-path=SCRIPTDIR source=common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

export PYTHONWARNINGS=${PYTHONWARNINGS-ignore} # Hydra and torch have many, about fairseq's own code
suffix='' # of the runs' directory
# target: language to translate into. batch: micro-batches of an update, over all GPUs.
case $benchmark in
    iwslt14)
        target=en batch=1
        generation=(--beam 5 --lenpen 1 --max-len-a 1 --max-len-b 50)
        ;;
    wmt16)
        target=de batch=8
        generation=(--beam 4 --lenpen 0.6)
        ;;
esac

# read_arguments OPTIONS ARGUMENT...: set the variables below by those of the options that are
# among OPTIONS; what is left is in arguments=(), what follows -- in overrides=().
# shellcheck disable=SC2034 # some are read by one script only
read_arguments() {
    local known=" $1 " name number
    shift
    arguments=() overrides=() given=()
    data=data/$benchmark runs='' preset='' max_epoch='' last='' json='' dry_run=''
    launcher=local gpus=1 nodes=1 master='' minutes='' parallel=''
    while (($#)); do
        case $1 in
            -h | --help)
                usage "scripts/$benchmark/$(basename "$0")"
                exit 0
                ;;
            --dry-run) dry_run=yes && shift ;;
            --)
                [[ $known == *" -- "* ]] || die "nothing may follow -- here; --help tells more"
                shift
                overrides=("$@")
                break
                ;;
            --*=*) set -- "${1%%=*}" "${1#*=}" "${@:2}" ;;
            -*)
                [[ $known == *" $1 "* ]] || die "unknown option $1; --help lists them"
                (($# > 1)) || die "$1 needs a value"
                name=${1#--}
                printf -v "${name//-/_}" %s "$2"
                given+=("$1" "$2")
                shift 2
                ;;
            *) arguments+=("$1") && shift ;;
        esac
    done
    for number in gpus nodes max_epoch last parallel; do
        [[ ! ${!number} || ${!number} =~ ^[1-9][0-9]*$ ]] ||
            die "--${number/_/-} must be a positive number, but is '${!number}'"
    done
    [[ ! $minutes || $minutes =~ ^[0-9]+(\.[0-9]+)?$ ]] ||
        die "--minutes must be a number, but is '$minutes'"
    [[ ! $preset || -f configs/preset/$preset.yaml ]] ||
        die "--preset: no configs/preset/$preset.yaml; there is: $(names configs/preset/*.yaml)"
    [[ ' local torchrun slurm ' == *" $launcher "* ]] ||
        die "--launcher must be local, torchrun or slurm, but is '$launcher'"
    runs=${runs:-$(default_runs)}
    for name in data runs json; do
        [[ ${given[*]} != *"--$name "* ]] || printf -v "$name" %s "$(from_caller "${!name}")"
    done
    last=${last:-$((${max_epoch:-6} < 6 ? max_epoch : 6))}
    if [[ $preset == small && ! $dry_run ]]; then # glibc would return memory at every update
        export MALLOC_MMAP_THRESHOLD_=2000000000 MALLOC_TRIM_THRESHOLD_=4000000000
    fi
}

default_runs() { echo "runs/$benchmark$suffix${preset:+-$preset}"; }

names() { for path; do basename "$path" .yaml; done | paste -sd ' '; }

# read_runs: take NORM PLACEMENT SEED... out of arguments=(), and find the norm's configuration.
read_runs() {
    ((${#arguments[@]} > 2)) || die "give NORM PLACEMENT SEED...; --help tells more"
    norm=${arguments[0]} placement=${arguments[1]} seeds=("${arguments[@]:2}")
    [[ $placement == post || $placement == pre ]] ||
        die "PLACEMENT must be post or pre, but is '$placement'"
    local seed
    for seed in "${seeds[@]}"; do
        [[ $seed =~ ^[0-9]+$ ]] || die "SEED must be a number, but is '$seed'"
    done
    group=$norm
    [[ -f configs/norm/$group.yaml ]] || group=${norm}_$placement
    [[ -f configs/norm/$group.yaml ]] ||
        die "NORM: no configs/norm/$norm.yaml; there is: $(names configs/norm/*.yaml)"
}

check_data() {
    [[ $dry_run || -f $data/bin/about.json ]] ||
        die "no data in $data: bash scripts/$benchmark/prepare.sh, or name it with --data"
}

quoted() { printf '%q ' "$@" | sed 's/ $//'; }

# run COMMAND...: run it, or with --dry-run print it.
run() {
    if [[ $dry_run ]]; then
        quoted "$@" && echo
    else
        say "+ $(quoted "$@")"
        "$@"
    fi
}

# run_to FILE COMMAND...: the same, with its output in FILE once it has run to its end.
run_to() {
    local file=$1
    shift
    if [[ $dry_run ]]; then
        printf '%s > %s\n' "$(quoted "$@")" "$(quoted "$file")"
    else
        say "+ $(quoted "$@") > $(quoted "$file")"
        "$@" >"$file.unfinished"
        mv "$file.unfinished" "$file"
    fi
}

# hydra_path PATH: print it so that Hydra reads it as it is.
hydra_path() {
    if [[ $1 =~ ^[A-Za-z0-9_./-]+$ ]]; then
        printf '%s' "$1"
    else
        printf "'%s'" "${1//\'/\\\'}"
    fi
}

# finished RUN: whether its training has made all its updates. fairseq would make one more; where
# it is the epochs that are numbered, it sees to that itself.
finished() {
    local updates override
    [[ ! $dry_run && -f $1/checkpoint_last.pt ]] || return
    updates=$(sed -n 's/^ *max_update: *\([0-9]*\).*/\1/p' "configs/${benchmark}_$placement.yaml")
    for override in "${overrides[@]}"; do
        [[ $override != optimization.max_update=* ]] || updates=${override#*=}
    done
    [[ $updates ]] && python - "$1/checkpoint_last.pt" "$updates" <<'END'
import sys
from pathlib import Path
from rbn_fairseq.checkpoints.files import read_checkpoint

try:
    state = read_checkpoint(Path(sys.argv[1]), mmap=True)
except ValueError:  # training mends it, or says why it cannot
    sys.exit(1)
sys.exit(state["optimizer_history"][-1]["num_updates"] < int(sys.argv[2]))
END
}

# train_runs: train norm, placement and every seed; what is finished is not trained again.
train_runs() {
    local world=$((gpus * nodes)) unfinished=() seed command data_bin
    ((batch % world == 0)) ||
        die "--gpus $gpus x --nodes $nodes does not divide the $batch micro-batches of an update"
    command=(rbn hydra-train)
    case $launcher in
        local)
            ((nodes == 1)) || die "--nodes $nodes needs --launcher torchrun or slurm"
            unset SLURM_JOB_NODELIST SLURM_STEP_NODELIST # fairseq would count SLURM's GPUs instead
            ;;
        torchrun)
            command=(torchrun --nproc_per_node "$gpus")
            if ((nodes > 1)); then
                [[ $master ]] || die "--nodes $nodes needs --master HOST:PORT, the same on all nodes"
                command+=(--nnodes "$nodes" --rdzv_backend c10d --rdzv_endpoint "$master")
                command+=(--rdzv_id "$benchmark-$placement-$norm")
            else
                command+=(--standalone)
            fi
            command+=(--no-python rbn hydra-train)
            ;;
        slurm)
            [[ $dry_run ]] || python -c 'import hydra_plugins.hydra_submitit_launcher' 2>/dev/null ||
                die "--launcher slurm needs Hydra's plugin: pip install hydra-submitit-launcher"
            command+=(-m)
            ;;
    esac
    for seed in "${seeds[@]}"; do
        if finished "$runs/$placement-$norm-seed$seed"; then
            say "$placement-$norm-seed$seed: is trained"
        else
            unfinished+=("$seed")
        fi
    done
    ((${#unfinished[@]})) || return 0
    data_bin=$(hydra_path "$data/bin")
    command+=(--config-dir configs --config-name "${benchmark}_$placement" norm="$group")
    command+=(${preset:+preset="$preset"} task.data="$data_bin")
    command+=(${max_epoch:+optimization.max_epoch="$max_epoch"})
    [[ $preset ]] || command+=("optimization.update_freq=[$((batch / world))]")
    if [[ $launcher == slurm ]]; then
        command+=(launcher=slurm hydra.launcher.nodes="$nodes" hydra.launcher.gpus_per_node="$gpus")
        # On one machine fairseq makes a port of the job's number; on several it must be told one.
        ((nodes == 1)) || command+=(distributed_training.distributed_port=$((20000 + RANDOM % 20000)))
        command+=(distributed_training.distributed_world_size="$world")
        command+=(hydra.sweep.dir="$(hydra_path "$runs")")
        command+=("hydra.sweep.subdir=$placement-$norm-seed\${common.seed}")
        run "${command[@]}" common.seed="$(IFS=,; echo "${unfinished[*]}")" "${overrides[@]}"
        return
    fi
    command+=(distributed_training.distributed_world_size="$world")
    for seed in "${unfinished[@]}"; do
        run "${command[@]}" common.seed="$seed" \
            hydra.run.dir="$(hydra_path "$runs/$placement-$norm-seed$seed")" "${overrides[@]}"
    done
}

# fresh FILE SOURCE: whether FILE was made after SOURCE.
fresh() { [[ ! $dry_run && $1 -nt $2 ]]; }

# fetch_references: let sacreBLEU have its test set before hours of translating, not after.
fetch_references() {
    [[ $benchmark != wmt16 || $dry_run || -f $data/raw/test.$target ]] ||
        sacrebleu --test-set wmt14/full --language-pair en-de --echo ref >/dev/null ||
        die "sacreBLEU cannot download wmt14/full; call this once where there is a network"
}

# score_checkpoint CHECKPOINT FILE: translate the test set with CHECKPOINT, put BLEU into FILE.
score_checkpoint() {
    local generated=${1%.pt}.generated.txt scoring
    fresh "$generated" "$1" ||
        run_to "$generated" rbn generate "$data/bin" --path "$1" --gen-subset test \
            "${generation[@]}" --remove-bpe --batch-size 64 --num-workers 0 --no-progress-bar
    scoring=(--lang "$target" --reference "$data/text/test.$target")
    if [[ $benchmark == wmt16 ]]; then
        scoring+=(--compound-split)
        if [[ -f $data/raw/test.$target ]]; then
            scoring+=(--raw-reference "$data/raw/test.$target")
        else
            scoring+=(--test-set wmt14/full --language-pair en-de)
        fi
    fi
    fresh "$2" "$generated" || run rbn score "$generated" "${scoring[@]}" --json "$2" --overwrite
}

# evaluate_runs: average, recalibrate, translate and score every seed's run.
evaluate_runs() {
    local seed run settings
    fetch_references
    for seed in "${seeds[@]}"; do
        run=$runs/$placement-$norm-seed$seed
        settings=$([[ $dry_run ]] && echo "configs/norm/$group.yaml" || echo "$run/.hydra/config.yaml")
        [[ $dry_run || -f $run/checkpoint_last.pt ]] ||
            die "no training in $run: bash scripts/$benchmark/train.sh $norm $placement $seed"
        [[ -f $settings ]] || die "no $settings, which tells whether $run has running statistics"
        if ! fresh "$run/average.pt" "$run/checkpoint_last.pt" ||
            [[ $(cat "$run/.averaged" 2>/dev/null) != "$last" ]]; then
            run rbn average "$run" --last "$last" --output "$run/average.pt" --overwrite
            [[ $dry_run ]] || echo "$last" >"$run/.averaged"
        fi
        if grep -Eq '^ *norm_(en|de)coder(_final)?: *[^#]*\b(batch|renorm|power|mabn)\b' "$settings"; then
            fresh "$run/average_recalibrated.pt" "$run/average.pt" ||
                run rbn recalibrate "$run/average.pt" --data "$data/bin" \
                    --output "$run/average_recalibrated.pt" --overwrite
            score_checkpoint "$run/average.pt" "$run/score_averaged_statistics.json"
            score_checkpoint "$run/average_recalibrated.pt" "$run/score.json"
        else
            score_checkpoint "$run/average.pt" "$run/score.json"
        fi
    done
}

# print_table: the table of all runs, and the commands with these options for what is missing.
print_table() {
    local options=(${preset:+--preset "$preset"} ${max_epoch:+--max-epoch "$max_epoch"})
    [[ $runs == "$(default_runs)" ]] || options+=(--runs "$runs")
    [[ $data == "data/$benchmark" ]] || options+=(--data "$data")
    [[ $dry_run || $runs != "$(default_runs)" ]] || mkdir -p "$runs" # before the first training
    run rbn table "$benchmark" --runs "$runs" ${options:+--options "$(quoted "${options[@]}")"} \
        ${json:+--json "$json" --overwrite}
}
