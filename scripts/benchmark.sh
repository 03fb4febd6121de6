#!/usr/bin/env bash
# Shared by train.sh, evaluate.sh and table.sh of the benchmarks: their options, and the commands
# that train and evaluate one run. Source it; the directory of the script names the benchmark.
# shellcheck source-path=SCRIPTDIR source=common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

export PYTHONWARNINGS=${PYTHONWARNINGS-ignore} # Hydra and torch have many, about fairseq's own code
benchmark=$(basename "$(dirname "${BASH_SOURCE[1]}")")
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

# read_arguments ARGUMENT...: set the options below; what is left is in arguments=(), what follows
# -- in overrides=().
# shellcheck disable=SC2034 # some are read by one script only
read_arguments() {
    arguments=() overrides=()
    data=data/$benchmark runs='' preset='' max_epoch='' last='' output='' dry_run=''
    launcher=local gpus=1 nodes=1 master='' minutes='' parallel=''
    while (($#)); do
        case $1 in
            -h | --help)
                usage "scripts/$benchmark/$(basename "$0")"
                exit 0
                ;;
            --dry-run) dry_run=yes && shift && continue ;;
            --)
                shift
                overrides=("$@")
                break
                ;;
            --?*) (($# > 1)) || die "$1 needs a value" ;;&
            --data) data=$(from_caller "$2") ;;
            --runs) runs=$(from_caller "$2") ;;
            --output) output=$(from_caller "$2") ;;
            --preset) preset=$2 ;;
            --max-epoch) max_epoch=$2 ;;
            --last) last=$2 ;;
            --minutes) minutes=$2 ;;
            --parallel) parallel=$2 ;;
            --launcher) launcher=$2 ;;
            --gpus) gpus=$2 ;;
            --nodes) nodes=$2 ;;
            --master) master=$2 ;;
            -*) die "unknown option $1; --help lists them" ;;
            *) arguments+=("$1") && shift && continue ;;
        esac
        shift 2
    done
    local number
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
    : "${runs:=runs/$benchmark$suffix${preset:+-$preset}}"
    : "${last:=$((${max_epoch:-6} < 6 ? max_epoch : 6))}"
    if [[ $preset == small && ! $dry_run ]]; then # glibc would return memory at every update
        export MALLOC_MMAP_THRESHOLD_=2000000000 MALLOC_TRIM_THRESHOLD_=4000000000
    fi
}

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

# train_runs: train norm, placement and every seed; what is finished is not trained again.
train_runs() {
    local world=$((gpus * nodes)) seed command
    ((batch % world == 0)) ||
        die "--gpus $gpus x --nodes $nodes does not divide the $batch micro-batches of an update"
    command=(fairseq-hydra-train)
    case $launcher in
        torchrun)
            command=(torchrun --nproc_per_node "$gpus")
            if ((nodes > 1)); then
                [[ $master ]] || die "--nodes $nodes needs --master HOST:PORT, the same on all nodes"
                command+=(--nnodes "$nodes" --rdzv_backend c10d --rdzv_endpoint "$master")
                command+=(--rdzv_id "$benchmark-$placement-$norm")
            else
                command+=(--standalone)
            fi
            command+=(--no-python fairseq-hydra-train)
            ;;
        slurm) command+=(-m) ;;
        local) ((nodes == 1)) || die "--nodes $nodes needs --launcher torchrun or slurm" ;;
    esac
    command+=(--config-dir configs --config-name "${benchmark}_$placement" norm="$group")
    command+=(${preset:+preset="$preset"} task.data="$data/bin")
    command+=(${max_epoch:+optimization.max_epoch="$max_epoch"})
    command+=(distributed_training.distributed_world_size="$world")
    [[ $preset ]] || command+=("optimization.update_freq=[$((batch / world))]")
    if [[ $launcher == slurm ]]; then
        command+=(launcher=slurm hydra.launcher.nodes="$nodes" hydra.launcher.gpus_per_node="$gpus")
        command+=(hydra.sweep.dir="$runs" "hydra.sweep.subdir=$placement-$norm-seed\${common.seed}")
        run "${command[@]}" common.seed="$(IFS=,; echo "${seeds[*]}")" "${overrides[@]}"
        return
    fi
    for seed in "${seeds[@]}"; do
        run "${command[@]}" common.seed="$seed" hydra.run.dir="$runs/$placement-$norm-seed$seed" \
            "${overrides[@]}"
    done
}

# fresh FILE SOURCE: whether FILE was made after SOURCE.
fresh() { [[ ! $dry_run && $1 -nt $2 ]]; }

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
    fresh "$2" "$generated" || run rbn score "$generated" "${scoring[@]}" --output "$2"
}

# evaluate_runs: average, recalibrate, translate and score every seed's run.
evaluate_runs() {
    local seed run settings
    for seed in "${seeds[@]}"; do
        run=$runs/$placement-$norm-seed$seed settings=$runs/$placement-$norm-seed$seed/.hydra/config.yaml
        [[ $dry_run ]] && settings=configs/norm/$group.yaml
        [[ $dry_run || -f $run/checkpoint_last.pt ]] ||
            die "no training in $run: bash scripts/$benchmark/train.sh $norm $placement $seed"
        fresh "$run/average.pt" "$run/checkpoint_last.pt" ||
            run rbn average --inputs "$run" --last "$last" --output "$run/average.pt"
        if grep -Eq '^ *norm_[a-z_]+: *[^#]*\bbatch\b' "$settings"; then
            fresh "$run/average_recalibrated.pt" "$run/average.pt" ||
                run rbn recalibrate "$run/average.pt" "$data/bin" \
                    --output "$run/average_recalibrated.pt"
            score_checkpoint "$run/average.pt" "$run/score_averaged_statistics.json"
            score_checkpoint "$run/average_recalibrated.pt" "$run/score.json"
        else
            score_checkpoint "$run/average.pt" "$run/score.json"
        fi
    done
}
