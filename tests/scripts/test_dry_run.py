"""Every command that the reproduction scripts would run, against the command's own parser."""

import re
import shlex
import subprocess

import pytest
import typer
from fairseq import options
from fairseq.dataclass.initialize import add_defaults, hydra_init
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from omegaconf import OmegaConf
from torch.distributed.run import get_args_parser

from rbn_fairseq.cli.app import app
from rbn_fairseq.norms.plan import NormPlan
from shell import ROOT, dry_run

TRAINED = ["rbn", "post", "1", "2"]
HYDRA_TRAIN = ["rbn", "hydra-train"]


def compose_command(words):
    """Compose the configuration of an `rbn hydra-train` command as it does itself."""
    assert words[:2] == HYDRA_TRAIN
    sweep = "-m" in words
    words = [word for word in words[2:] if word != "-m"]
    directory, name = (
        words[words.index("--config-dir") + 1],
        words[words.index("--config-name") + 1],
    )
    overrides = [word for word in words if "=" in word]
    assert len(overrides) + 4 == len(words)
    if sweep:  # of a sweep, its first job
        overrides = [re.sub(r"^(common\.seed=\d+),.*", r"\1", word) for word in overrides]
    GlobalHydra.instance().clear()
    hydra_init(name)
    with initialize_config_dir(str(ROOT / directory), version_base="1.1"):
        cfg = compose(name, overrides, return_hydra_config=True)
    OmegaConf.set_struct(cfg, True)
    add_defaults(cfg)  # refuses what fairseq and the plugin do not know
    return cfg, cfg.hydra


def check(words):
    """Let a command's own parser read it."""
    if words[0] == "torchrun":
        known = get_args_parser().parse_args(words[1:])
        assert known.no_python
        return check([known.training_script, *known.training_script_args])
    if words[:2] == HYDRA_TRAIN:
        return compose_command(words)[0]
    assert words[0] == "rbn"
    if words[1] == "generate":
        arguments = words[2:]
        parser = options.get_generation_parser()
        return options.parse_args_and_arch(
            parser, [*arguments, "--user-dir", str(ROOT / "rbn_fairseq")]
        )
    command = typer.main.get_command(app).commands[words[1]]
    return command.make_context(words[1], words[2:]).params


@pytest.mark.parametrize("placement", ["post", "pre"])
@pytest.mark.parametrize("norm", ["ln", "bn", "rbn", "rbn_official"])
@pytest.mark.parametrize("benchmark", ["iwslt14", "wmt16"])
def test_every_command_is_understood(benchmark, norm, placement):
    for script in ("train", "evaluate"):
        commands = dry_run(f"{benchmark}/{script}.sh", norm, placement, 1)
        assert commands
        for words in commands:
            check(words)


@pytest.mark.parametrize("benchmark", ["iwslt14", "wmt16"])
def test_tables_are_understood(benchmark):
    (table,) = dry_run(f"{benchmark}/table.sh")
    check(table)


def flat(cfg):
    return {
        name: cfg[group][name]
        for group in ("model", "optimizer", "lr_scheduler", "optimization", "dataset", "criterion")
        for name in cfg[group]
    }


@pytest.mark.parametrize(
    "placement, lr, warmup_init_lr, arch",
    [
        ("post", 0.0005, -1, "rbn_transformer_iwslt_de_en"),
        ("pre", 0.0015, 1e-7, "rbn_transformer_iwslt_de_en_pre"),
    ],
)
def test_recipe_of_the_authors(placement, lr, warmup_init_lr, arch):
    """The settings of their scripts, as they publish them."""
    (words,) = dry_run("iwslt14/train.sh", "rbn_official", placement, 3)
    cfg = check(words)
    assert cfg.model._name == arch
    assert cfg.common.seed == 3
    wanted = {
        "lr": [lr], "warmup_init_lr": warmup_init_lr, "warmup_updates": 8000, "max_epoch": 60,
        "max_tokens": 4096, "update_freq": [1], "clip_norm": 0.0, "weight_decay": 1e-4,
        "adam_betas": "(0.9,0.98)", "label_smoothing": 0.1, "dropout": 0.3,
        "attention_dropout": 0.1, "activation_dropout": 0.1, "share_all_embeddings": True,
        "rbn_mean_weight": {"post": 60, "pre": 0.1}[placement],
        "rbn_std_weight": {"post": 0, "pre": 0.01}[placement], "rbn_convention": "official",
        "norm_encoder": "batch", "norm_batch_momentum": 0.05, "norm_batch_eps_mode": "clamp",
    }  # fmt: skip
    have = flat(cfg)
    assert {name: have[name] for name in wanted} == wanted
    assert (cfg.optimizer._name, cfg.optimizer.adam_eps) == ("adam", 1e-8)
    assert cfg.lr_scheduler._name == "inverse_sqrt"
    assert cfg.checkpoint.keep_last_epochs == 7


@pytest.mark.parametrize("placement", ["post", "pre"])
def test_reading_of_wmt16(placement):
    """The settings that docs/reproduction.md names."""
    cfg = check(dry_run("wmt16/train.sh", "ln", placement, 1)[0])
    arch = "rbn_transformer_wmt_en_de" + ("_pre" if placement == "pre" else "")
    assert (cfg.model._name, cfg.optimizer._name) == (arch, "adam")
    wanted = {
        "lr": [0.0007], "warmup_init_lr": 1e-7, "warmup_updates": 4000, "max_update": 100_000,
        "max_epoch": 0, "max_tokens": 4096, "update_freq": [8], "clip_norm": 0.0,
        "weight_decay": 0.0, "adam_betas": "(0.9,0.98)", "label_smoothing": 0.1, "dropout": 0.1,
        "share_all_embeddings": True,
    }  # fmt: skip
    have = flat(cfg)
    assert {name: have[name] for name in wanted} == wanted
    generation = check(dry_run("wmt16/evaluate.sh", "ln", placement, 1)[1])
    assert (generation.beam, generation.lenpen) == (4, 0.6)


def test_direct_commands_use_one_gpu(monkeypatch):
    """fairseq alone takes every GPU that it sees, and multiplies the batch."""
    monkeypatch.setattr("torch.cuda.device_count", lambda: 8)
    words = "rbn hydra-train --config-dir configs --config-name NAME task.data=x"
    for name in ("iwslt14_post", "iwslt14_pre", "wmt16_post", "wmt16_pre"):
        cfg, _ = compose_command(words.replace("NAME", name).split())
        assert cfg.distributed_training.distributed_world_size == 1


@pytest.mark.parametrize("name", ["a b", "jürgen", "it's", "a,b", "x=(1)"])
def test_directories_with_odd_names(name, tmp_path):
    words = dry_run(
        "iwslt14/train.sh", "ln", "post", 1, "--data", tmp_path / name, "--runs", f"/{name}"
    )[0]
    cfg, hydra = compose_command(words)
    assert cfg.task.data == f"{tmp_path / name}/bin"
    assert hydra.run.dir == f"/{name}/post-ln-seed1"


def test_evaluation_of_the_authors():
    commands = dry_run("iwslt14/evaluate.sh", "rbn", "post", 1)
    assert [words[1] for words in commands] == [
        "average", "recalibrate", "generate", "score", "generate", "score",
    ]  # fmt: skip
    assert check(commands[0])["last"] == 6
    generation = check(commands[2])
    assert (generation.beam, generation.lenpen) == (5, 1)
    assert (generation.max_len_a, generation.max_len_b) == (1, 50)
    assert generation.gen_subset == "test"
    assert generation.post_process == "subword_nmt"
    without, with_it = commands[3], commands[5]
    assert {check(words)["lang"] for words in (without, with_it)} == {"en"}
    assert without[without.index("--reference") + 1] == "data/iwslt14/text/test.en"
    assert without[-2].endswith("score_averaged_statistics.json")
    assert with_it[-2].endswith("/score.json")
    assert "average_recalibrated" in with_it[2]


@pytest.mark.parametrize("norm", ["bn", "brn", "pn", "pn_ls", "mabn", "wn"])
def test_running_statistics_are_recalibrated(norm):
    commands = dry_run("iwslt14/evaluate.sh", norm, "post", 1)
    assert commands[1][1] == "recalibrate"


@pytest.mark.parametrize("norm", ["ln", "rms", "dyt"])
def test_a_model_without_running_statistics_is_scored_once(norm):
    commands = dry_run("iwslt14/evaluate.sh", norm, "post", 1, 2)
    assert [words[1] for words in commands] == ["average", "generate", "score"] * 2


def test_scores_of_wmt16():
    score = check(dry_run("wmt16/evaluate.sh", "ln", "pre", 1)[-1])
    assert score["compound_split"] and score["lang"] == "de"
    assert (score["test_set"], score["language_pair"]) == ("wmt14/full", "en-de")


@pytest.mark.parametrize(
    "options",
    [
        ("--gpus", 1), ("--gpus", 4), ("--gpus", 8), ("--launcher", "torchrun", "--gpus", 2),
        ("--launcher", "torchrun", "--gpus", 4, "--nodes", 2, "--master", "host:29500"),
        ("--launcher", "slurm", "--gpus", 8), ("--launcher", "slurm", "--gpus", 4, "--nodes", 2),
    ],
    ids=lambda options: " ".join(map(str, options)),
)  # fmt: skip
def test_the_batch_stays_when_the_number_of_gpus_changes(options):
    if "slurm" in options:
        pytest.importorskip("hydra_plugins.hydra_submitit_launcher")
    commands = dry_run("wmt16/train.sh", *TRAINED, *options)
    assert len(commands) == (1 if "slurm" in options else 2)
    for words in commands:
        cfg = check(words)
        given = dict(zip(options[::2], options[1::2], strict=True))
        gpus = given.get("--gpus", 1) * given.get("--nodes", 1)
        assert cfg.distributed_training.distributed_world_size == gpus
        (update_freq,) = cfg.optimization.update_freq
        assert gpus * update_freq * cfg.dataset.max_tokens == 8 * 4096


def test_slurm():
    """One process a GPU, as fairseq asks of SLURM: tasks x nodes = its world."""
    pytest.importorskip("hydra_plugins.hydra_submitit_launcher")
    options = ("--launcher", "slurm", "--gpus", 4, "--nodes", 2)
    (words,) = dry_run("wmt16/train.sh", *TRAINED, *options)
    assert "-m" in words and "common.seed=1,2" in words
    cfg, hydra = compose_command(words)
    launcher = hydra.launcher
    assert launcher._target_.endswith("SlurmLauncher")
    assert launcher.nodes * launcher.tasks_per_node == 8
    assert launcher.gpus_per_node == launcher.tasks_per_node == 4
    assert cfg.distributed_training.distributed_world_size == 8
    assert cfg.distributed_training.distributed_port > 0
    assert hydra.sweep.subdir == "post-rbn-seed1"  # where evaluate.sh and table.sh look


def test_torchrun_on_several_machines():
    options = ("--launcher", "torchrun", "--gpus", 4, "--nodes", 2, "--master", "host:29500")
    words = dry_run("wmt16/train.sh", "ln", "pre", 1, *options)[0]
    known = get_args_parser().parse_args(words[1:])
    assert (known.nnodes, known.nproc_per_node) == ("2", "4")
    assert (known.rdzv_backend, known.rdzv_endpoint) == ("c10d", "host:29500")


@pytest.mark.parametrize("benchmark", ["iwslt14", "wmt16"])
def test_commands_for_what_is_missing_are_of_these_runs(benchmark, tmp_path):
    options = ("--preset", "small", "--runs", tmp_path / "a b", "--data", tmp_path)
    handed_on = check(dry_run(f"{benchmark}/table.sh", *options)[0])["options"]
    script = f"{benchmark}/train.sh"
    assert dry_run(script, "ln", "post", 1, *shlex.split(handed_on)) == dry_run(
        script, "ln", "post", 1, *options
    )


@pytest.mark.parametrize("benchmark", ["iwslt14", "wmt16"])
def test_small_preset(benchmark):
    words = dry_run(f"{benchmark}/train.sh", "ln", "pre", 1, "--preset", "small")[0]
    cfg = check(words)
    assert cfg.model.encoder_embed_dim == 128 and cfg.model._name.endswith("_pre")
    assert cfg.optimization.update_freq == [1]


def test_grid():
    commands = dry_run("iwslt14/grid.sh", "--minutes", 1, "--parallel", 1, "pre", 2)
    trained = [words for words in commands if words[:2] == HYDRA_TRAIN]
    weights = [dict(word.split("=", 1) for word in words if "=" in word) for words in trained]
    names = "criterion.rbn_mean_weight", "criterion.rbn_std_weight"
    found = {tuple(float(it[name]) for name in names) for it in weights}
    paper = (0, 0.01, 0.1, 1)
    assert found == {(mean, std) for mean in paper for std in paper} and len(trained) == 16
    for words in (trained[0], trained[-1]):  # the others differ in weights alone
        cfg = check(words)
        given = dict(word.split("=", 1) for word in words if "=" in word)
        assert [cfg.criterion.rbn_mean_weight, cfg.criterion.rbn_std_weight] == [
            float(given[name]) for name in names
        ]
        assert cfg.common.seed == 2
    for words in commands:
        if words not in trained:
            check(words)


@pytest.mark.parametrize("plan", ["layer", "batch@0:layer", "batch@0-4:layer", "groupscale+power"])
def test_plans_pass_through_hydra(plan):
    """As docs/reproduction.md gives them: without quotes, in place of what the norm's file says."""
    (words,) = dry_run("iwslt14/train.sh", "bn", "post", 1, "--", f"model.norm_encoder={plan}")
    assert check(words).model.norm_encoder == plan


def test_the_loop_over_layers_of_the_page():
    """Its plans are those of the sweep, and each has a directory of its own."""
    page = (ROOT / "docs" / "reproduction.md").read_text()
    loop = re.search(r"^plans=.*?^done$", page, re.MULTILINE | re.DOTALL)[0]
    only_print = 'bash() { command bash "$1" --dry-run "${@:2}"; }\n'
    done = subprocess.run(
        ["bash", "-euc", only_print + loop], cwd=ROOT, capture_output=True, text=True, check=True
    )
    commands = [shlex.split(line.partition(" > ")[0]) for line in done.stdout.splitlines()]
    trained = [words for words in commands if words[:2] == HYDRA_TRAIN]
    (plans,) = sweep_values("layers").values()
    assert [words[-1] for words in trained] == [f"model.norm_encoder={plan}" for plan in plans]
    directories = [f"runs/iwslt14-L{number}/post-bn-seed1" for number in range(7)]
    assert [words[-2] for words in trained] == [f"hydra.run.dir={path}" for path in directories]
    averaged = [words for words in commands if words[1] == "average"]
    assert [words[2] for words in averaged] == directories


def test_cells_have_the_options_of_the_grid():
    options = ("--preset", "small", "--max-epoch", 2, "--data", "/data")
    commands = dry_run("iwslt14/grid.sh", "--minutes", 1, "--parallel", 1, *options)
    trained = [words for words in commands if words[:2] == HYDRA_TRAIN]
    assert len(trained) == 16
    for words in trained:
        given = {"preset=small", "optimization.max_epoch=2", "task.data=/data/bin", "common.seed=1"}
        assert given <= set(words)
        (place,) = (word for word in words if word.startswith("hydra.run.dir="))
        assert "=runs/iwslt14-grid-small/post-seed1/" in place
    averages = [words for words in commands if words[1] == "average"]
    assert {words[words.index("--last") + 1] for words in averages} == {"2"}


def sweep_values(name, *overrides):
    GlobalHydra.instance().clear()
    hydra_init("iwslt14_post")
    with initialize_config_dir(str(ROOT / "configs"), version_base="1.1"):
        cfg = compose(
            "iwslt14_post", [f"sweep={name}", "task.data=x", *overrides], return_hydra_config=True
        )
    return {key: str(value).split(",") for key, value in cfg.hydra.sweeper.params.items()}


def test_sweep_over_the_grid():
    paper = ["0", "0.01", "0.1", "1"]
    values = sweep_values("grid")
    assert values == {"criterion.rbn_mean_weight": paper, "criterion.rbn_std_weight": paper}


def test_sweep_over_layers():
    (plans,) = sweep_values("layers").values()
    assert len(plans) == 7
    for number, text in enumerate(plans):
        plan = NormPlan(text, 6, ("self", "ffn"), ("batch", "layer"), "--norm-encoder")
        for layer in range(6):
            for site in ("self", "ffn"):
                assert plan.norms(layer, site) == ("batch" if layer < number else "layer",)


def test_sweep_over_seeds():
    assert sweep_values("seeds") == {"common.seed": ["1", "2", "3"]}
