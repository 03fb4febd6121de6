"""Recipes: what is in them, copies of them, and what `rbn train` and Hydra make of them."""

import re
import shlex
import shutil
import subprocess
from argparse import Namespace
from contextlib import nullcontext
from functools import partial
from itertools import chain
from pathlib import Path

import pytest
from fairseq.dataclass.initialize import add_defaults, hydra_init
from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf

import composing
import runs
from command import rbn, user_error
from rbn_fairseq import recipes
from rbn_fairseq.cli.fairseq_commands import plugin_options
from rbn_fairseq.cli.hydra_train import check_norms
from rbn_fairseq.cli.recipe_options import parse_training, with_recipe
from rbn_fairseq.norms.plan import NormPlan

ROOT = Path(__file__).resolve().parent.parent.parent
RECIPES = [path.stem for path in ROOT.glob("configs/*.yaml") if path.stem != "base"]
GENERAL = ("common", "dataset", "distributed_training", "checkpoint", "optimization")
ELSEWHERE = ("user_dir", "save_dir", "tensorboard_logdir", "log_format", "no_seed_provided")
NORMS = [path.stem for path in ROOT.glob("configs/norm/*.yaml")]


def options_of(recipe, norm=None, preset=None):
    """Return fairseq's configuration by a recipe's options, and the name of its norm's file."""
    settings, chosen = recipes.compose_recipe(recipe, {"norm": norm, "preset": preset})
    more = ("--save-dir", "S", "--user-dir", str(runs.USER_DIR))
    return composing.options_of(["DATA", *chain(*recipes.as_options(settings)), *more]), chosen


def by_hydra(recipe, *overrides):
    """Return what Hydra composes, with its own settings."""
    return OmegaConf.create(recipes._compose(recipes.find(recipe), overrides))


def test_recipes_are_listed():
    output = rbn("recipes").stdout
    assert all(f" {name} " in output for name in (*RECIPES, *NORMS))
    assert "IWSLT14 De-En, Post-Norm Transformer" in output


@pytest.mark.parametrize(
    "recipe, norm, preset",
    [
        *((recipe, None, None) for recipe in RECIPES),
        *(("iwslt14_post", norm, None) for norm in NORMS),
        ("wmt16_pre", "rbn_official", "small"),
        ("iwslt14_pre", "ln", "mixed"),
    ],
)
def test_a_recipe_is_the_same_by_options_and_by_hydra(monkeypatch, recipe, norm, preset):
    """fairseq's whole configuration, but for what is a matter of the run's directory."""
    composed, chosen = options_of(recipe, norm, preset)
    ours = OmegaConf.to_container(composed)
    if norm == "rbn_official":
        norm = f"rbn_official_{recipe.rpartition('_')[2]}"
    assert norm in (None, chosen)
    overrides = [f"{group}={name}" for group, name in (("norm", norm), ("preset", preset)) if name]
    GlobalHydra.instance().clear()
    # fairseq stores its defaults under the recipe's name, for all that come later.
    monkeypatch.setattr(ConfigStore.instance(), "repo", dict(ConfigStore.instance().repo))
    hydra_init(recipe)
    with initialize_config_dir(str(ROOT / "configs"), version_base="1.1"):
        composed = compose(recipe, [*overrides, "task.data=DATA"])
    add_defaults(composed)
    theirs = OmegaConf.to_container(composed, resolve=False, enum_to_str=True)
    # fairseq alone takes every GPU that it sees, and multiplies the batch.
    assert theirs["distributed_training"]["distributed_world_size"] == 1
    compared = 0
    for section in ("model", "criterion", "task", "optimizer", "lr_scheduler", *GENERAL):
        known = ours[section]
        if isinstance(known, Namespace):  # of fairseq's components that have no dataclass, as SGD
            known = vars(known)
        for key, value in theirs[section].items():
            if key in ELSEWHERE or str(value).startswith("${"):
                continue
            if value is not None:  # which of the model's sizes is the architecture's own
                assert str(known[key]) == str(value), (section, key)
                compared += 1
    assert compared > 150


def test_a_copy_of_a_recipe_is_one(data_bin, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    text = rbn("recipes", "default").stdout
    assert text == (ROOT / "configs" / "default.yaml").read_text()
    (tmp_path / "mine.yaml").write_text(text.replace("[0.0005]", "[0.25]"))
    settings, norm = recipes.compose_recipe("mine.yaml", {"norm": "ln", "preset": None})
    assert norm == "ln" and ("--lr", "0.25") in recipes.as_options(settings)
    chosen = {"norm": "ln", "preset": None}
    shared = "--share-all-embeddings"
    assert shared in with_recipe([str(data_bin)], None, "mine.yaml", chosen)
    for own in ("share_all_embeddings: false", "decoder_embed_dim: 256"):
        (tmp_path / "mine.yaml").write_text(text.replace("\nmodel:\n", f"\nmodel:\n  {own}\n"))
        assert shared not in with_recipe([str(data_bin)], None, "mine.yaml", chosen)
    (tmp_path / "mine.yaml").write_text(rbn("recipes", "iwslt14_pre").stdout)
    settings, norm = recipes.compose_recipe("mine.yaml", {"norm": "rbn_official"})
    assert norm == "rbn_official_pre" and settings["criterion"]["rbn_mean_weight"] == 0.1
    derived = "defaults:\n  - iwslt14_pre\n  - _self_\noptimization: {lr: [0.25]}\n"
    (tmp_path / "mine.yaml").write_text(derived)
    assert recipes.choose(tmp_path / "mine.yaml", "norm", "rbn_official").endswith("_pre")
    (tmp_path / "mine.yml").write_text(derived)
    with pytest.raises(ValueError, match=r"`\.yaml` alone"):
        recipes.find("mine.yml")
    (tmp_path / "rbn.yaml").write_text("model: {norm_encoder: rms}")  # not the package's `rbn`
    with pytest.raises(ValueError, match=r"--norm: .*as `norm/rbn\.yaml`"):
        recipes.compose_recipe("mine.yaml", {"norm": "rbn.yaml"})
    assert "Did you mean `iwslt14_pre`" in user_error(capsys, "recipes", "iwslt14_per")
    with pytest.raises(ValueError, match="--preset small: the recipe `ptb_post` has no `preset`"):
        recipes.compose_recipe("ptb_post", {"preset": "small"})


def test_settings_that_base_would_overwrite_are_refused(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    mine = tmp_path / "mine.yaml"
    text = rbn("recipes", "default").stdout
    mine.write_text(text + "\ncommon: {seed: 7, cpu: false, bf16: true}\n")
    told = user_error(capsys, "train", "bin", "--recipe", str(mine))
    assert "its common.seed would be lost, since what" in told and "on the command line" in told
    assert told == user_error(capsys, "hydra-train", "--config-name", str(mine), "task.data=bin")
    there = ("--config-dir", str(tmp_path), "--config-name", "mine")
    assert told == user_error(capsys, "hydra-train", *there, "task.data=bin")
    for harmless in ("seed: 1", "bf16: true"):
        mine.write_text(f"{text}\ncommon: {{{harmless}}}\n")
        assert recipes.find(str(mine)) == mine
    for lost in ("common: {seed: 7}", "model: {dropout: 0.25}", "checkpoint: {save_dir: here}"):
        mine.write_text(f"defaults: [_self_, default]\n{lost}\n")
        told = user_error(capsys, "train", "bin", "--recipe", str(mine))
        assert "would be lost, since what stands behind `_self_`" in told
        assert lost.replace(": {", ".").split(":")[0] in told
    for groups in (  # of a copy, and named otherwise
        text.replace("\ncriterion:\n", "\ncriterion:\n  rbn_mean_weight: 5\n"),
        "defaults: [_self_, /base]\ncommon: {seed: 7}\n",
        "defaults: [_self_, base, {preset: small}]\ndataset: {max_tokens: 77}\n",
        text + "\nhydra: {sweep: {subdir: 'lr${optimization.lr}'}}\n",
    ):
        mine.write_text(groups)
        for name in (str(mine), mine.name):
            with pytest.raises(ValueError, match="would be lost"):
                recipes.find(name)
    mine.write_text("defaults: [_self_, default]\nmodel: {dropout: 0.3, encoder_layerdrop: 0.1}\n")
    assert recipes.compose_recipe(str(mine), {})[0]["model"]["encoder_layerdrop"] == 0.1
    mine.write_text("defaults: [default, _self_]\ncommon: {seed: 7}\n")
    assert recipes.compose_recipe(str(mine), {})[0]["common"]["seed"] == 7


def test_a_recipe_may_refer_to_its_settings(tmp_path):
    mine = tmp_path / "mine.yaml"
    mine.write_text(
        "defaults: [default, _self_]\noptimization: {max_update: 70}\n"
        "lr_scheduler:\n  total_num_update: ${optimization.max_update}\n"
    )
    scheduler = ("--lr-scheduler", "polynomial_decay")
    chosen = {"norm": "ln", "preset": None}
    words = with_recipe([str(tmp_path), *scheduler], None, str(mine), chosen)
    assert words[words.index("--total-num-update") + 1] == "70"


def test_a_recipe_may_refer_to_what_rbn_decides(tmp_path):
    mine = tmp_path / "mine.yaml"
    mine.write_text(
        "defaults: [default, _self_]\ntask: {data: '${oc.env:NO_SUCH_VARIABLE}'}\n"
        "common: {tensorboard_logdir: '${checkpoint.save_dir}/tb'}\n"
    )
    settings, _ = recipes.compose_recipe(str(mine), {})
    assert not {"data"} & settings["task"].keys()
    assert "tensorboard_logdir" not in settings["common"]
    assert "log_format" not in settings["common"]
    text = mine.read_text().replace("tb'}", "tb', log_format: json}")
    mine.write_text(f"{text}checkpoint: {{save_dir: here}}\n")
    settings, _ = recipes.compose_recipe(str(mine), {})
    assert settings["common"]["log_format"] == "json"
    assert settings["common"]["tensorboard_logdir"] == "here/tb"


def test_a_recipe_without_the_group_of_norms(tmp_path):
    mine = tmp_path / "mine.yaml"
    mine.write_text("defaults: [_self_, base]\nmodel: {_name: rbn_transformer_tiny}\n")
    chosen = {"norm": None, "preset": None}
    words = with_recipe([str(tmp_path), "--norm-encoder", "rms"], None, str(mine), chosen)
    assert words[words.index("--norm-encoder") + 1] == "rms"


@pytest.mark.parametrize("left", [True, False])
def test_a_switch_that_is_on_by_default(tmp_path, left):
    mine = tmp_path / "mine.yaml"
    mine.write_text(f"defaults: [default, _self_]\ntask: {{left_pad_source: {left}}}\n")
    words = with_recipe([str(tmp_path)], None, str(mine), {"norm": "ln", "preset": None})
    parsed = parse_training([*words, *plugin_options(words, None)])
    assert parsed.left_pad_source is left


def test_rbn_of_a_language_model_has_the_placements_weights():
    for placement in ("post", "pre"):
        path = recipes.find(f"ptb_{placement}")
        assert recipes.choose(path, "norm", "rbn_official") == f"norm=rbn_official_{placement}"
        assert recipes.choose(path, "norm", "rbn") == "norm=rbn_lm"


def test_a_package_below_a_path_that_hydra_would_read(tmp_path, monkeypatch):
    odd = tmp_path / "My, 'Project' (k=v)"
    shutil.copytree(ROOT / "configs", odd)
    monkeypatch.setattr(recipes, "directory", lambda: odd)
    mine = tmp_path / "mine.yaml"
    mine.write_text((odd / "default.yaml").read_text())
    assert recipes.compose_recipe(str(mine), {"norm": "ln"})[1] == "ln"
    given = OverridesParser.create().parse_override(recipes.setting("common.user_dir", str(odd)))
    assert given.value() == str(odd)


def test_hydra_finds_the_norm_of_a_recipe(forked, tmp_path):
    (tmp_path / "norm").mkdir()
    (tmp_path / "norm" / "mine.yaml").write_text("# @package _global_\nmodel: {norm_decoder: rms}")
    (tmp_path / "mine.yaml").write_text("defaults: [ptb_post, _self_]\ncommon: {seed: 7}\n")
    (tmp_path / "next.yaml").write_text("defaults: [mine, _self_]\ncommon: {fp16: true}\n")
    own = f"hydra.searchpath=[file://{tmp_path}]"
    for recipe, norm, plan in (
        ("ptb_post", "bn", "batch"),
        ("ptb_post", "mine", "rms"),
        (tmp_path / "mine.yaml", "bn", "batch"),
        (tmp_path / "next.yaml", "bn", "batch"),
    ):
        settings = (f"norm={norm}", own, "task.data=bin", "common.cpu=true")
        options = ("--config-name", recipe, *settings, "-c", "job")
        done = subprocess.run(
            [forked / "rbn", "hydra-train", *options], capture_output=True, text=True
        )
        assert done.returncode == 0 and f"norm_decoder: {plan}" in done.stdout, done.stderr
        assert ("seed: 7" in done.stdout) == (recipe != "ptb_post")
    options = ("--config-name", "ptb_post", "norm=rms", "task.data=bin")
    done = subprocess.run([forked / "rbn", "hydra-train", *options], capture_output=True, text=True)
    assert done.returncode == 2 and "norm=ln_lm model.norm_decoder=rms" in done.stderr


@pytest.mark.nightly
def test_hydra_takes_in_what_a_copy_needs(tmp_path, forked):
    copy = tmp_path / "default.yaml"
    copy.write_text(rbn("recipes", "default").stdout.replace("[0.0005]", "[0.25]"))
    for name in (("--config-dir", tmp_path, "--config-name", "default"), ("--config-name", copy)):
        options = (*name, "norm=ln", "--cfg", "job")
        done = subprocess.run(
            [forked / "rbn", "hydra-train", *options], capture_output=True, text=True
        )
        assert done.returncode == 0 and "norm_encoder: layer" in done.stdout, done.stderr
        assert "- 0.25" in done.stdout
    done = subprocess.run(  # whose value would be a setting that follows
        [forked / "rbn", "hydra-train", "--config-name", "default", "--info"],
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "text, words",
    [
        ("seed: 3", "`seed: 3` is in no section"),
        ("a: [", "is no YAML"),
        ("common: {seed: 1}\ncommon: {seed: 2}", "is no YAML: "),
    ],
    ids=["no section", "no YAML", "a key twice"],
)
def test_a_malformed_recipe(capsys, data_bin, tmp_path, text, words):
    (tmp_path / "mine.yaml").write_text(text)
    line = user_error(capsys, "train", data_bin, "--recipe", tmp_path / "mine.yaml")
    assert "mine.yaml" in line and words in line


@pytest.mark.parametrize(
    "recipe, norm, option, plan",
    [
        ("ptb_post", "rms", "--norm-decoder", "rms"),
        ("imdb_post", "bn_lm", "--norm-encoder", "batch"),
        ("default", "rms", "--norm-encoder", "rms"),
    ],
)
def test_a_norm_is_that_of_the_stack_that_there_is(tmp_path, capsys, recipe, norm, option, plan):
    chosen = {"norm": norm, "preset": None}
    words = with_recipe([str(tmp_path)], None, recipe, chosen)
    assert words[words.index(option) + 1] == plan
    other = ({"--norm-encoder", "--norm-decoder"} - {option}).pop()
    assert recipe == "default" or other not in words
    assert "--norm-encoder" not in capsys.readouterr().out.partition("left out")[2]


@pytest.mark.parametrize(
    "recipe, given, instead",
    [
        (
            "conll2003_pre",
            ["rbn_transformer_tagger_tiny"],
            "give --encoder-normalize-before, or",
        ),
        ("iwslt14_post", ["rbn_transformer_tiny_pre"], "--arch rbn_transformer_tiny, or for Pre-N"),
        (
            "iwslt14_pre",
            ["rbn_transformer"],
            "--encoder-normalize-before --decoder-normalize-before,",
        ),
        ("imdb_pre", ["rbn_transformer_classifier_tiny_pre"], None),
        ("imdb_pre", ["rbn_transformer_classifier_tiny", "--encoder-normalize-before"], None),
    ],
)
def test_an_architecture_does_not_take_a_recipes_placement(tmp_path, recipe, given, instead):
    words = [str(tmp_path), "--arch", *given]
    if instead is None:
        assert with_recipe(words, None, recipe, {"norm": "bn", "preset": None})
        return
    with pytest.raises(ValueError, match=f"`{recipe}` is P.*{instead}"):
        with_recipe(words, None, recipe, {"norm": "bn", "preset": None})


def test_a_penalty_for_one_placement_is_not_for_the_other(tmp_path, capsys):
    words = [str(tmp_path), "--encoder-normalize-before", "--decoder-normalize-before"]
    for norm in (None, "rbn_official"):
        with pytest.raises(ValueError, match="add --norm rbn_official_pre,"):
            with_recipe(words, None, "default", {"norm": norm, "preset": None})
        hydra = ["--config-name", "default", *([f"norm={norm}"] if norm else [])]
        for pre in ("_name=rbn_transformer_tiny,rbn_tiny_pre", "encoder_normalize_before=true"):
            line = user_error(capsys, "hydra-train", *hydra, f"++model.{pre}")
            assert "add norm=rbn_official_pre," in line
    given = with_recipe(words, None, "default", {"norm": "rbn_official_pre", "preset": None})
    assert given[given.index("--rbn-mean-weight") + 1] == "0.1"
    of_lm = {"norm": "rbn_official_post", "preset": None}
    with pytest.raises(ValueError, match="add --norm rbn_official_pre,"):
        with_recipe([words[0], words[2]], None, "ptb_post", of_lm)
    for fine in ([words[0], words[2]], [*words, "--rbn-mean-weight", "1"]):
        assert with_recipe(fine, None, "default", {"norm": None, "preset": None})
    for placement, other in (("post", "pre"), ("pre", "post")):
        of_other = {"norm": f"rbn_official_{other}", "preset": None}
        for recipe in (f"iwslt14_{placement}", f"imdb_{placement}"):
            with pytest.raises(ValueError, match=f"add --norm rbn_official_{placement},"):
                with_recipe(words[:1], None, recipe, of_other)
            assert with_recipe([words[0], "--rbn-mean-weight=1"], None, recipe, of_other)
        hydra = ["--config-name", f"iwslt14_{placement}", f"norm=bn,rbn_official_{other}", "-m"]
        line = user_error(capsys, "hydra-train", *hydra)
        assert f"add norm=rbn_official_{placement}," in line


@pytest.mark.parametrize(
    "recipe, words, fitting",
    [
        ("default", ["++model.encoder_normalize_before=true"], "pre"),
        ("imdb_post", ["+model.encoder_normalize_before=true", "norm=rbn_official_post"], "pre"),
        (
            "iwslt14_pre",
            ["model._name=rbn_transformer_iwslt_de_en", "norm=rbn_official_pre"],
            "post",
        ),
        ("iwslt14_post", ["norm=ln,rbn_official_post", "model._name=rbn_tiny,rbn_tiny_pre"], "pre"),
        ("iwslt14_pre", ["model._name=rbn_tiny", "norm=rbn_official_post"], None),
        ("iwslt14_post", ["norm=rbn_official_pre", "criterion.rbn_mean_weight=1"], None),
        ("iwslt14_post", ["norm=ln,bn", "task.data=a,b", "common.seed=1,2"], None),
        ("iwslt14_pre", ["norm=rbn_official_post", "sweep=grid"], None),  # of weights
        ("iwslt14_pre", ["++model.encoder_normalize_before=false", "norm=rbn_official_post"], None),
        ("iwslt14_post", ["norm=bacth,rbn_official_pre"], "post"),  # the first is Hydra's to tell
    ],
)
def test_a_penalty_is_for_the_placement_of_each_job(recipe, words, fitting):
    check = partial(check_norms, recipes.find(recipe), words)
    if fitting is None:
        check()
        return
    with pytest.raises(ValueError, match=f"add norm=rbn_official_{fitting},"):
        check()


def test_weights_of_ones_own_are_for_any_placement(tmp_path):
    recipe, words = tmp_path / "own.yaml", [str(tmp_path)]
    text = "defaults: [iwslt14_pre, override norm: rbn_official_post, _self_]\n"
    for criterion, fine in (("", False), ("criterion: {rbn_mean_weight: 0.3}\n", True)):
        recipe.write_text(text + criterion)
        composed = partial(with_recipe, words, None, str(recipe), {"norm": None, "preset": None})
        for check in (composed, partial(check_norms, recipe, [])):
            with nullcontext() if fine else pytest.raises(ValueError, match="rbn_official_pre,"):
                check()


def test_recipes_in_a_directory_named_by_a_relative_path(data_bin, forked, tmp_path):
    text = (recipes.directory() / "iwslt14_post.yaml").read_text()
    (tmp_path / "mine").mkdir()
    asking = re.sub(r"- norm: \w+", "- norm: ???", text)
    assert asking != text
    (tmp_path / "mine" / "own.yaml").write_text(asking)
    words = ("--config-dir", "mine", "--config-name", "own", "norm=bn", f"task.data={data_bin}")
    done = subprocess.run(
        [forked / "rbn", "hydra-train", *words, "-c", "job"],
        capture_output=True, text=True, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0 and "norm_encoder: batch" in done.stdout, done.stderr


def test_a_typo_in_a_norm_of_both_placements(tmp_path):
    with pytest.raises(ValueError, match=r"Did you mean `rbn_official`\?"):
        recipes.choose(recipes.find("default"), "norm", "rbn_oficial")


def test_a_recipe_for_another_kind_of_model(tmp_path):
    words = [str(tmp_path), "--arch", "rbn_transformer_lm_tiny"]
    with pytest.raises(ValueError, match="is for --task language_modeling_rbn.*take a --recipe"):
        with_recipe(words, None, "iwslt14_pre", {"norm": "bn", "preset": None})


@pytest.mark.parametrize(
    "option, value, words",
    [
        ("--recipe", "iwslt15_post", "Did you mean `iwslt14_post`"),
        ("--norm", "rnb", "Did you mean `rbn`"),
        ("--preset", "large", "There are mixed, small"),
    ],
)
def test_unknown_recipes(capsys, data_bin, option, value, words):
    line = user_error(capsys, "train", data_bin, option, value)
    assert option in line and f"`{value}`" in line and words in line


def check(cfg, wanted):
    groups = ("model", "optimizer", "lr_scheduler", "optimization", "dataset", "criterion")
    have = {name: cfg[group][name] for group in groups for name in cfg[group]}
    assert {name: have[name] for name in wanted} == wanted


@pytest.mark.parametrize("placement, lr, warmup", [("post", 0.0005, -1), ("pre", 0.0015, 1e-7)])
def test_recipe_of_the_authors(placement, lr, warmup):
    """The settings of their scripts, as they publish them."""
    cfg, _ = options_of(f"iwslt14_{placement}", "rbn_official")
    wanted = {
        "lr": [lr], "warmup_init_lr": warmup, "warmup_updates": 8000, "max_epoch": 60,
        "max_tokens": 4096, "update_freq": [1], "clip_norm": 0.0, "weight_decay": 1e-4,
        "adam_betas": "(0.9,0.98)", "label_smoothing": 0.1, "dropout": 0.3,
        "attention_dropout": 0.1, "activation_dropout": 0.1, "share_all_embeddings": True,
        "rbn_mean_weight": {"post": 60, "pre": 0.1}[placement],
        "rbn_std_weight": {"post": 0, "pre": 0.01}[placement], "rbn_convention": "official",
        "norm_encoder": "batch", "norm_batch_momentum": 0.05, "norm_batch_eps_mode": "clamp",
    }  # fmt: skip
    check(cfg, wanted)
    assert cfg.model._name == "rbn_transformer_iwslt_de_en" + "_pre" * (placement == "pre")
    assert (cfg.optimizer._name, cfg.lr_scheduler._name) == ("adam", "inverse_sqrt")
    assert cfg.checkpoint.keep_last_epochs == 7


@pytest.mark.parametrize("placement", ["post", "pre"])
def test_reading_of_wmt16(placement):
    """The settings that docs/reproduction.md names."""
    cfg, _ = options_of(f"wmt16_{placement}", "ln")
    assert cfg.model._name == "rbn_transformer_wmt_en_de" + "_pre" * (placement == "pre")
    wanted = {
        "lr": [0.0007], "warmup_init_lr": 1e-7, "warmup_updates": 4000, "max_update": 100_000,
        "max_epoch": 0, "max_tokens": 4096, "update_freq": [8], "clip_norm": 0.0,
        "weight_decay": 0.0, "adam_betas": "(0.9,0.98)", "label_smoothing": 0.1, "dropout": 0.1,
    }  # fmt: skip
    check(cfg, wanted)


def test_presets():
    small, _ = options_of("wmt16_pre", "ln", "small")
    assert small.model.encoder_embed_dim == 128 and small.model._name.endswith("_pre")
    assert small.optimization.update_freq == [1]
    mixed, plain = (options_of("wmt16_pre", "ln", preset)[0] for preset in ("mixed", None))
    assert int(mixed.task.length_mixing) == 16
    mixed.task.length_mixing = plain.task.length_mixing
    assert mixed == plain  # it changes the batches alone


@pytest.mark.parametrize("preset", ["small", "mixed"])
@pytest.mark.parametrize("sweep", ["grid", "layers", "seeds"])
def test_the_directories_of_hydras_jobs_tell_presets_and_norms_apart(preset, sweep):
    cfg = by_hydra("default", f"preset={preset}", f"sweep={sweep}")
    hydra = OmegaConf.to_container(cfg, resolve=False)["hydra"]
    assert f"-{preset}/" in hydra["run"]["dir"]
    assert hydra["sweep"]["dir"].endswith(f"-{preset}")
    assert "${hydra:runtime.choices.norm}-" in hydra["sweep"]["subdir"]


def test_slurm():
    """A job has one GPU, as the recipe has, until more are asked for.

    Of Hydra's own: one process a GPU, as fairseq asks of SLURM: tasks x nodes = its world.
    """
    pytest.importorskip("hydra_plugins.hydra_submitit_launcher")
    page = (ROOT / "docs" / "reproduction.md").read_text()
    command = re.search(
        r"^rbn hydra-train --config-name (wmt16.*\n(    .*\n)*)", page, re.MULTILINE
    )[1]
    wmt16 = [word for word in command.split() if word not in ("-m", "\\")]
    grid = ["iwslt14_post", "launcher=slurm", "sweep=grid"]
    for (name, *options), gpus in [(wmt16, 8), (grid, 1)]:
        cfg = by_hydra(name, *options)
        launcher = cfg.hydra.launcher
        assert launcher._target_.endswith("SlurmLauncher")
        assert launcher.nodes * launcher.tasks_per_node == gpus
        assert cfg.distributed_training.distributed_world_size == gpus
        assert gpus * cfg.optimization.update_freq[0] == (8 if name.startswith("wmt16") else 1)


@pytest.mark.parametrize("plan", ["batch@0:layer", "batch@0-4:layer", "groupscale+power"])
def test_plans_pass_through_hydra(plan):
    assert by_hydra("iwslt14_post", f"model.norm_encoder={plan}").model.norm_encoder == plan


def sweep(name):
    params = by_hydra("iwslt14_post", f"sweep={name}").hydra.sweeper.params
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
    loops = re.search(r"^# Figure 5: .*?\n```$", page, re.MULTILINE | re.DOTALL)[0][:-3]
    stand_in = 'rbn() { echo "rbn $@"; }\n'
    done = subprocess.run(
        ["bash", "-euc", stand_in + loops], capture_output=True, text=True, check=True
    )
    lines = [shlex.split(line) for line in done.stdout.splitlines()]
    trained = [words for words in lines if words[1] == "train"]
    evaluated = [words[2] for words in lines if words[1] == "evaluate"]
    assert evaluated == [words[words.index("--save-dir") + 1] for words in trained]
    assert len(set(evaluated)) == 16 + 7
    means, stds = sweep("grid").values()
    weights = [words[-3:] for words in trained[:16]]
    assert weights == [[mean, "--rbn-std-weight", std] for mean in means for std in stds]
    (plans,) = sweep("layers").values()
    assert [words[words.index("--norm-encoder") + 1] for words in trained[16:]] == plans
