"""`rbn run` and `rbn evaluate`: each command against its own parser, and what is done again."""

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
import sacrebleu
import typer
from fairseq import options
from fairseq.dataclass.initialize import add_defaults, hydra_init
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from omegaconf import OmegaConf

from command import completed, rbn, user_error
from rbn_fairseq.checkpoints.files import write_checkpoint
from rbn_fairseq.cli import benchmark
from rbn_fairseq.cli.app import app
from rbn_fairseq.norms.plan import NormPlan

ROOT = Path(__file__).resolve().parent.parent.parent
HYDRA_TRAIN = ["rbn", "hydra-train"]
WITH_BATCH_NORM = ["average", "recalibrate", "generate", "score", "generate", "score"]


def dry_run(verb, *arguments):
    """Return the commands that a verb prints, as words."""
    result = completed(verb, "--dry-run", *arguments)
    return [shlex.split(line) for line in result.stdout.splitlines()]


def compose_recipe(name, overrides):
    GlobalHydra.instance().clear()
    hydra_init(name)
    with initialize_config_dir(str(ROOT / "configs"), version_base="1.1"):
        return compose(name, overrides, return_hydra_config=True)


def compose_command(words):
    """Compose the configuration of an `rbn hydra-train` command as it does itself."""
    assert words[:2] == HYDRA_TRAIN
    name = words[words.index("--config-name") + 1]
    overrides = [word for word in words if "=" in word]
    assert len(overrides) + 4 == len(words)
    cfg = compose_recipe(name, overrides)
    OmegaConf.set_struct(cfg, True)
    add_defaults(cfg)  # refuses what fairseq and the plugin do not know
    return cfg, cfg.hydra


def check(words):
    """Let a command's own parser read it."""
    if words[:2] == HYDRA_TRAIN:
        return compose_command(words)[0]
    assert words[0] == "rbn"
    if words[1] == "generate":
        plugin = ["--user-dir", str(ROOT / "rbn_fairseq")]
        return options.parse_args_and_arch(options.get_generation_parser(), [*words[2:], *plugin])
    command = typer.main.get_command(app).commands[words[1]]
    return command.make_context(words[1], words[2:]).params


@pytest.mark.parametrize(
    "name, norm, placement",
    [
        ("iwslt14", "bn", "pre"),
        ("iwslt14", "rbn_official", "post"),
        ("wmt16", "ln", "post"),
        ("wmt16", "rbn_official", "pre"),
    ],
)
def test_every_command_is_understood(name, norm, placement):
    for verb in ("run", "evaluate"):
        commands = dry_run(verb, name, norm, placement, 1)
        assert commands
        for words in commands:
            check(words)


def flat(cfg):
    groups = ("model", "optimizer", "lr_scheduler", "optimization", "dataset", "criterion")
    return {name: cfg[group][name] for group in groups for name in cfg[group]}


@pytest.mark.parametrize("placement, lr, warmup", [("post", 0.0005, -1), ("pre", 0.0015, 1e-7)])
def test_recipe_of_the_authors(placement, lr, warmup):
    """The settings of their scripts, as they publish them."""
    cfg = check(dry_run("run", "iwslt14", "rbn_official", placement, 3)[0])
    wanted = {
        "lr": [lr], "warmup_init_lr": warmup, "warmup_updates": 8000, "max_epoch": 60,
        "max_tokens": 4096, "update_freq": [1], "clip_norm": 0.0, "weight_decay": 1e-4,
        "adam_betas": "(0.9,0.98)", "label_smoothing": 0.1, "dropout": 0.3,
        "attention_dropout": 0.1, "activation_dropout": 0.1, "share_all_embeddings": True,
        "rbn_mean_weight": {"post": 60, "pre": 0.1}[placement],
        "rbn_std_weight": {"post": 0, "pre": 0.01}[placement], "rbn_convention": "official",
        "norm_encoder": "batch", "norm_batch_momentum": 0.05, "norm_batch_eps_mode": "clamp",
    }  # fmt: skip
    have = flat(cfg)
    assert {name: have[name] for name in wanted} == wanted
    assert cfg.model._name == "rbn_transformer_iwslt_de_en" + "_pre" * (placement == "pre")
    assert (cfg.optimizer._name, cfg.lr_scheduler._name) == ("adam", "inverse_sqrt")
    assert (cfg.common.seed, cfg.checkpoint.keep_last_epochs) == (3, 7)


@pytest.mark.parametrize("placement", ["post", "pre"])
def test_reading_of_wmt16(placement):
    """The settings that docs/reproduction.md names."""
    cfg = check(dry_run("run", "wmt16", "ln", placement, 1)[0])
    assert cfg.model._name == "rbn_transformer_wmt_en_de" + "_pre" * (placement == "pre")
    wanted = {
        "lr": [0.0007], "warmup_init_lr": 1e-7, "warmup_updates": 4000, "max_update": 100_000,
        "max_epoch": 0, "max_tokens": 4096, "update_freq": [8], "clip_norm": 0.0,
        "weight_decay": 0.0, "adam_betas": "(0.9,0.98)", "label_smoothing": 0.1, "dropout": 0.1,
    }  # fmt: skip
    have = flat(cfg)
    assert {name: have[name] for name in wanted} == wanted


def test_evaluation():
    commands = dry_run("evaluate", "iwslt14", "rbn", "post", 1)
    assert [words[1] for words in commands] == WITH_BATCH_NORM
    assert check(commands[0])["last"] == 6
    search = check(commands[2])
    assert (search.beam, search.lenpen, search.max_len_a, search.max_len_b) == (5, 1, 1, 50)
    assert (search.gen_subset, search.post_process) == ("test", "subword_nmt")
    without, with_it = (check(commands[number]) for number in (3, 5))
    assert without["reference"] == Path("data/iwslt14/text/test.en")
    assert without["json"].name == "score_averaged_statistics.json"
    assert with_it["json"].name == "score.json" and "recalibrated" in str(with_it["generated"])
    commands = dry_run("evaluate", "wmt16", "ln", "pre", 1)
    assert [words[1] for words in commands] == ["average", "generate", "score"]
    assert check(commands[0])["last"] == 6
    assert (check(commands[1]).beam, check(commands[1]).lenpen) == (4, 0.6)
    score = check(commands[2])
    assert score["compound_split"] and score["lang"] == "de"
    assert (score["test_set"], score["language_pair"]) == ("wmt14/full", "en-de")


@pytest.mark.parametrize("norm", ["brn", "mabn"])
def test_running_statistics_are_recalibrated(norm):
    assert dry_run("evaluate", "iwslt14", norm, "post", 1)[1][1] == "recalibrate"


def test_directories_with_odd_names():
    name = "jürgen's x=(1)"
    (words,) = dry_run("run", "iwslt14", "ln", "post", 1, "--data", name, "--runs", f"/{name}")
    cfg, hydra = compose_command(words)
    assert (cfg.task.data, hydra.run.dir) == (f"{name}/bin", f"/{name}/post-ln-seed1")


def test_the_batch_stays_when_the_number_of_gpus_changes():
    commands = dry_run("run", "wmt16", "rbn", "post", 1, 2, "--gpus", 4)
    assert len(commands) == 2
    for words in commands:
        cfg = check(words)
        assert cfg.distributed_training.distributed_world_size == 4
        assert 4 * cfg.optimization.update_freq[0] * cfg.dataset.max_tokens == 8 * 4096


@pytest.mark.parametrize("preset", ["small", "mixed"])
@pytest.mark.parametrize("sweep", ["grid", "layers", "seeds"])
def test_the_directories_of_hydras_jobs_tell_presets_and_norms_apart(preset, sweep):
    given = ["task.data=x", f"preset={preset}", f"sweep={sweep}"]
    words = [*HYDRA_TRAIN, "--config-name", "default", *given]
    hydra = OmegaConf.to_container(compose_command(words)[1], resolve=False)
    assert f"-{preset}/" in hydra["run"]["dir"]
    assert hydra["sweep"]["dir"].endswith(f"-{preset}")
    assert "${hydra:runtime.choices.norm}-" in hydra["sweep"]["subdir"]


def test_slurm():
    """Of Hydra's own: one process a GPU, as fairseq asks of SLURM: tasks x nodes = its world."""
    pytest.importorskip("hydra_plugins.hydra_submitit_launcher")
    (words,) = dry_run("run", "wmt16", "rbn", "post", 1, "--gpus", 8)
    cfg, hydra = compose_command([*words, "launcher=slurm"])
    assert hydra.launcher._target_.endswith("SlurmLauncher")
    assert hydra.launcher.nodes * hydra.launcher.tasks_per_node == 8
    assert cfg.distributed_training.distributed_world_size == 8


def test_direct_commands_use_one_gpu(monkeypatch):
    """fairseq alone takes every GPU that it sees, and multiplies the batch."""
    monkeypatch.setattr("torch.cuda.device_count", lambda: 8)
    for name in ("iwslt14_post", "iwslt14_pre", "wmt16_post", "wmt16_pre"):
        words = f"rbn hydra-train --config-dir configs --config-name {name} task.data=x".split()
        cfg = compose_recipe(name, words[-1:])
        assert cfg.distributed_training.distributed_world_size == 1


def test_the_small_preset():
    (words,) = dry_run("run", "wmt16", "ln", "pre", 1, "--preset", "small")
    cfg, hydra = compose_command(words)
    assert cfg.model.encoder_embed_dim == 128 and cfg.model._name.endswith("_pre")
    assert cfg.optimization.update_freq == [1]
    assert hydra.run.dir == "runs/wmt16-small/pre-ln-seed1"


def test_the_mixed_preset_changes_the_batches_alone():
    (words,) = dry_run("run", "wmt16", "ln", "pre", 1, "--preset", "mixed", "--gpus", 4)
    cfg, hydra = compose_command(words)
    assert int(cfg.task.length_mixing) == 16 and cfg.optimization.update_freq == [2]
    assert hydra.run.dir == "runs/wmt16-mixed/pre-ln-seed1"
    (plain,) = dry_run("run", "wmt16", "ln", "pre", 1, "--gpus", 4)
    other, _ = compose_command(plain)
    cfg.task.length_mixing, cfg.hydra = 1, other.hydra
    assert cfg == other


@pytest.mark.parametrize("plan", ["batch@0:layer", "batch@0-4:layer", "groupscale+power"])
def test_plans_pass_through_hydra(plan):
    (words,) = dry_run("run", "iwslt14", "bn", "post", 1, "--", f"model.norm_encoder={plan}")
    assert check(words).model.norm_encoder == plan


def sweep(name):
    params = compose_recipe("iwslt14_post", [f"sweep={name}", "task.data=x"]).hydra.sweeper.params
    return {key: str(value).split(",") for key, value in params.items()}


def test_sweeps():
    assert sweep("seeds") == {"common.seed": ["1", "2", "3"]}
    paper = ["0", "0.01", "0.1", "1"]
    assert sweep("grid") == {f"criterion.rbn_{part}_weight": paper for part in ("mean", "std")}
    (plans,) = sweep("layers").values()
    for number, text in enumerate(plans):
        plan = NormPlan.parse(text)
        found = [plan.norms(layer, site) for layer in range(6) for site in ("self", "ffn")]
        assert found == [("batch",)] * 2 * number + [("layer",)] * 2 * (6 - number)


def test_the_loops_of_the_page():
    """Those for Figures 3 and 5 train what the sweeps do, each in a directory of its own."""
    page = (ROOT / "docs" / "reproduction.md").read_text()
    loops = re.search(r"^cells=.*?\n```$", page, re.MULTILINE | re.DOTALL)[0].removesuffix("```")
    stand_ins = 'bash() { echo "$1 ${@:2}"; }; rbn() { echo "rbn $@"; }\n'
    done = subprocess.run(
        ["bash", "-euc", stand_ins + loops], capture_output=True, text=True, check=True
    )
    lines = [shlex.split(line) for line in done.stdout.splitlines()]
    trained = [words for words in lines if words[0].endswith("train.sh")]
    evaluated = [words for words in lines if words[0].endswith("evaluate.sh")]
    assert [words[1:-1] for words in evaluated][:16] == [words[1:-4] for words in trained][:16]
    weights = sweep("grid").values()
    assert {tuple(word.partition("=")[2] for word in words[-2:]) for words in trained[:16]} == {
        (mean, std) for mean in next(iter(weights)) for std in list(weights)[1]
    }
    (plans,) = sweep("layers").values()
    assert [words[-1] for words in trained[16:]] == [f"model.norm_encoder={p}" for p in plans]
    assert len({words[words.index("--runs") + 1] for words in trained}) == 16 + 7
    (report,) = (words for words in lines if words[:2] == ["rbn", "report"])
    assert len([word for word in report if word.endswith("/post-rbn-seed1")]) == 16


class StandIn(list):
    """Stands for subprocess.run: writes what commands leave, and remembers their words."""

    failing = ""

    def __call__(self, command):
        words = command[2:]  # those behind `python -m`
        self.append(words)
        failed = words[1] == self.failing
        for option in ("--output", "--json"):
            if option in words and not failed:
                Path(words[words.index(option) + 1]).write_text(words[1])
        if "--results-path" in words and not failed:
            translations = Path(words[words.index("--results-path") + 1])
            translations.mkdir(exist_ok=True)
            (translations / "generate-test.txt").write_text("")
        return subprocess.CompletedProcess(words, 3 if failed else 0)

    def take(self):
        """Return the verbs of the commands since the last time."""
        verbs = [words[1] for words in self]
        self.clear()
        return verbs


@pytest.fixture
def commands(monkeypatch):
    stand_in = StandIn()
    monkeypatch.setattr(benchmark.subprocess, "run", stand_in)
    return stand_in


@pytest.fixture
def places(tmp_path):
    (tmp_path / "data" / "bin").mkdir(parents=True)
    (tmp_path / "data" / "bin" / "about.json").write_text("{}")
    return "--data", tmp_path / "data", "--runs", tmp_path / "runs"


@pytest.fixture
def bn_run(tmp_path):
    """A trained run; long ago, so that what is made now is newer."""
    directory = tmp_path / "runs" / "post-bn-seed1"
    (directory / ".hydra").mkdir(parents=True)
    settings = "model:\n  norm_encoder: batch@0:layer\noptimization:\n  max_epoch: 3\n"
    (directory / ".hydra" / "config.yaml").write_text(settings)
    (directory / "checkpoint_last.pt").write_text("")
    os.utime(directory / "checkpoint_last.pt", (1, 1))
    return directory


def test_only_what_is_out_of_date_is_evaluated_again(bn_run, places, commands):
    call = ("evaluate", "iwslt14", "bn", "post", 1, *places)
    assert rbn(*call).exit_code == 0
    assert commands[0][commands[0].index("--last") + 1] == "3"  # all that it was trained for
    assert commands.take() == WITH_BATCH_NORM
    assert rbn(*call).exit_code == 0 and commands.take() == []
    shutil.rmtree(bn_run / "average")
    shutil.rmtree(bn_run / "average_recalibrated")
    assert rbn(*call).exit_code == 0 and commands.take() == WITH_BATCH_NORM  # scored by hand
    os.utime(bn_run / "score.json", (2, 2))
    os.utime(bn_run / "checkpoint_last.pt", (3, 3))  # more training
    assert rbn(*call).exit_code == 0 and commands.take() == WITH_BATCH_NORM


def test_what_its_updates_ended_early_is_averaged_over_fewer_epochs(bn_run, places, commands):
    settings = bn_run / ".hydra" / "config.yaml"
    settings.write_text(settings.read_text() + "  max_update: 1000\n")
    for epoch in (1, 2):
        (bn_run / f"checkpoint{epoch}.pt").write_text("")
    completed("evaluate", "iwslt14", "bn", "post", 1, *places)
    assert commands[0][commands[0].index("--last") + 1] == "2"


@pytest.mark.parametrize("verb", ["recalibrate", "generate", "score"])
def test_what_failed_is_done_again(bn_run, places, commands, verb):
    """And nothing after it."""
    call = ("evaluate", "iwslt14", "bn", "post", 1, *places)
    commands.failing = verb
    assert rbn(*call).exit_code == 3
    calls = commands.take()
    assert calls[-1] == verb and calls.count(verb) == 1
    commands.failing = ""
    assert rbn(*call).exit_code == 0 and commands.take() == WITH_BATCH_NORM


def test_references_are_fetched_before_the_work(capsys, bn_run, places, commands, monkeypatch):
    def no_network(*names):
        raise OSError("no route")

    monkeypatch.setattr(sacrebleu, "get_reference_files", no_network)
    assert "--test-set" in user_error(capsys, "evaluate", "wmt16", "bn", "post", 1, *places)
    assert not commands
    raw = places[1] / "raw" / "test.de"
    raw.parent.mkdir()
    raw.write_text("")
    completed("evaluate", "wmt16", "bn", "post", 1, *places)
    (score, _) = (words for words in commands if words[1] == "score")
    assert score[score.index("--raw-reference") + 1] == str(raw) and "--test-set" not in score


def test_what_has_all_its_updates_is_not_trained_again(tmp_path, places, commands):
    def train(*overrides):
        completed("run", "wmt16", "rbn", "pre", 1, 2, 3, *places, *overrides)
        seeds = [next(word for word in words if "seed=" in word)[-1] for words in commands]
        commands.clear()
        return seeds

    def write(seed, number):
        path = tmp_path / "runs" / f"pre-rbn-seed{seed}" / "checkpoint_last.pt"
        state = {"optimizer_history": [{"num_updates": number}], "model": {}}
        write_checkpoint(path, state | {"cfg": {"optimization": {"max_update": 100_000}}})

    assert train() == ["1", "2", "3"]
    write(1, 100_000)
    write(2, 99_999)
    assert train() == ["2", "3"]
    for more in ("optimization", "++optimization"):
        assert train("--", f"{more}.max_update=100001") == ["1", "2", "3"]
    assert train("--", "common.fp16=true") == ["2", "3"]
    (tmp_path / "runs" / "pre-rbn-seed1" / "checkpoint_last.pt").write_bytes(b"x")
    assert train() == ["1", "2", "3"]


@pytest.mark.parametrize(
    "arguments, named",
    [
        ("run wmt16 ln post one", "SEED"),
        ("run wmt16 sln post 1", "NORM"),
        ("run wmt16 ln post 1 --preset tiny", "--preset"),
        ("run wmt16 ln post 1 --gpus 3", "--gpus 3"),
        ("run wmt16 ln post x=1 2", "SEED"),
    ],
)
def test_refusals(capsys, arguments, named):
    assert named in user_error(capsys, *arguments.split(), "--dry-run")


def test_nothing_prepared(capsys, tmp_path):
    said = user_error(capsys, "run", "iwslt14", "ln", "post", 1, "--data", tmp_path)
    assert "--data" in said and "rbn prepare iwslt14" in said
