"""Architectures: the same model from argparse and from Hydra; the user's values win."""

import dataclasses
from types import SimpleNamespace

import pytest
import torch
from fairseq import models as fairseq_models
from fairseq.models.transformer import TransformerModel
from omegaconf import DictConfig, OmegaConf

import composing
import runs
from rbn_fairseq.models import RBNTransformerModel
from rbn_fairseq.models.config import completed, config_class, resolve
from rbn_fairseq.models.kinds import TRANSLATION
from rbn_fairseq.norms import NORMS, BatchNorm
from small_models import task

ARCHES = sorted(TRANSLATION.presets)
GIVEN = {"encoder_layers": 3, "dropout": 0.0, "norm_encoder": "batch", "decoder_embed_dim": 64}


def from_argparse(arch, *given):
    """The model's config as fairseq-train makes it from a command line."""
    argv = [
        "DATA", "--user-dir", str(runs.USER_DIR), "--task", "translation_rbn", "--arch", arch,
        "--criterion", "label_smoothed_cross_entropy_rbn", "--optimizer", "adam", *given,
    ]  # fmt: skip
    return composing.options_of(argv).model


def from_hydra(arch, **given):
    """The model's config as fairseq-hydra-train composes it."""
    schema = OmegaConf.structured(config_class())
    OmegaConf.set_struct(schema, False)
    return OmegaConf.merge(schema, {"_name": arch, **given})


def from_defaults_alone(arch, **given):
    return DictConfig({"_name": arch, **given})


def sizes(cfg):
    full = resolve(cfg)
    return OmegaConf.to_container(OmegaConf.structured(full)), full.norms


def without_name(cfg):
    settings, norms = sizes(cfg)
    settings.pop("_name", None)
    return settings, norms


def build(cfg, model=RBNTransformerModel, **kwargs):
    with torch.device("meta"):
        return model.build_model(cfg, task(), **kwargs)


def shapes(model):
    return {name: tuple(value.shape) for name, value in model.state_dict().items()}


@pytest.mark.parametrize("arch", ARCHES)
def test_the_same_model_on_all_roads(arch):
    cfgs = [from_argparse(arch), from_hydra(arch), from_defaults_alone(arch)]
    built = [build(cfg) for cfg in cfgs]
    assert shapes(built[0]) == shapes(built[1]) == shapes(built[2])
    settings = [without_name(cfg) for cfg in cfgs]
    assert settings[0] == settings[1] == settings[2]
    for model in built:
        pre = arch.endswith("_pre")
        assert model.encoder.layers[0].normalize_before == pre
        assert model.decoder.layers[0].normalize_before == pre
        assert (model.encoder.layer_norm is not None) == pre
        dropout = 0.3 if "big" in arch else 0.1
        assert model.encoder.dropout_module.p == model.decoder.dropout_module.p == dropout


@pytest.mark.parametrize("arch", ["rbn_transformer", "rbn_transformer_wmt_en_de_big_pre"])
def test_the_user_wins(arch):
    argv = []
    for name, value in GIVEN.items():
        argv += [f"--{name.replace('_', '-')}", str(value)]
    cfgs = [
        from_argparse(arch, *argv),
        from_hydra(arch, **GIVEN),
        from_defaults_alone(arch, **GIVEN),
    ]
    for cfg in cfgs:
        settings, norms = sizes(cfg)
        assert settings["encoder"]["layers"] == 3 and settings["decoder"]["layers"] == 6
        assert settings["dropout"] == 0.0
        assert settings["decoder"]["embed_dim"] == 64
        assert settings["decoder"]["input_dim"] == settings["decoder"]["output_dim"] == 64
        assert (norms.stacks["encoder"].layers, norms.stacks["decoder"].layers) == (
            "batch",
            "layer",
        )
    built = build(from_argparse(arch, "--encoder-layers", "3", "--norm-encoder", "batch"))
    assert len(built.encoder.layers) == 3 and len(built.decoder.layers) == 6
    assert sum(isinstance(part, BatchNorm) for part in built.modules()) == 6


def other_value(option):
    """A valid value that is not the default."""
    if "choices" in option.metadata:
        return next(c for c in option.metadata["choices"] if c != option.default)
    return 2 if option.default in (0, 1) else type(option.default)(option.default / 2)


@pytest.mark.parametrize("name", NORMS)
def test_options_of_a_norm_on_all_roads(name):
    arch, chosen = "rbn_transformer_tiny_pre", {"norm_encoder": name, "norm_encoder_final": name}
    fields = dataclasses.fields(NORMS[name].options_type)
    options = {item.name: other_value(item) for item in fields}
    chosen |= {f"norm_{name}_{option}": value for option, value in options.items()}
    argv = [f"--{key.replace('_', '-')}={value}" for key, value in chosen.items()]
    cfgs = [
        from_argparse(arch, *argv),
        from_hydra(arch, **chosen),
        from_defaults_alone(arch, **chosen),
    ]
    settings = [without_name(cfg) for cfg in cfgs]
    assert settings[0] == settings[1] == settings[2]
    norms = settings[0][1]
    assert dataclasses.asdict(norms.options[name]) == options
    assert (norms.stacks["encoder"].layers, norms.stacks["encoder"].final) == (name, name)
    assert norms.stacks["decoder"].layers == "layer"
    built = [build(cfg) for cfg in cfgs]
    assert shapes(built[0]) == shapes(built[1]) == shapes(built[2])
    assert len({str(model) for model in built}) == 1
    default = build(from_hydra(arch, norm_encoder=name, norm_encoder_final=name))
    assert (str(built[0]) != str(default)) == bool(options)
    norm = built[0].encoder.layer_norm
    assert getattr(norm, "options", None) in (None, NORMS[name].options_type(**options))


def test_the_user_turns_a_preset_pre_norm_off():
    # Hydra alone can say so: argparse's switches only turn on.
    cfg = from_hydra("rbn_transformer_tiny_pre", encoder_normalize_before=False)
    settings, _ = sizes(cfg)
    assert not settings["encoder"]["normalize_before"]
    assert settings["decoder"]["normalize_before"]


@pytest.mark.parametrize(
    "arch", ["transformer_iwslt_de_en", "transformer_wmt_en_de", "transformer_wmt_en_de_big"]
)
def test_sizes_are_fairseqs(arch):
    namespace = SimpleNamespace(arch=arch)
    fairseq_models.ARCH_CONFIG_REGISTRY[arch](namespace)
    theirs = build(namespace, TransformerModel)
    ours = build(from_argparse(f"rbn_{arch}"))
    assert shapes(ours) == shapes(theirs)
    assert ours.encoder.dropout_module.p == theirs.encoder.dropout_module.p
    one, other = (model.encoder.layers[0].self_attn for model in (ours, theirs))
    assert one.num_heads == other.num_heads
    assert ours.cfg.attention_dropout == other.dropout_module.p


@pytest.mark.parametrize("side", ["encoder", "decoder"])
def test_a_final_norm_that_is_not_used_is_told(side, caplog):
    option = f"--norm-{side}-final"
    build(from_argparse("rbn_transformer_tiny", option, "instance"))  # no decoder may have it
    assert f"{option} instance is not used: only Pre-Norm" in caplog.text
    caplog.clear()
    build(from_argparse("rbn_transformer_tiny_pre", option, "rms"))
    build(from_argparse("rbn_transformer_tiny"))
    assert "is not used" not in caplog.text


@pytest.mark.parametrize("option", ["--adaptive-input", "--tie-adaptive-weights"])
def test_options_that_fairseqs_translation_model_does_not_read(option):
    with pytest.raises(SystemExit):
        from_argparse("rbn_transformer_tiny", option)


@pytest.mark.parametrize(
    "given, sides", [("encoder", ["encoder"]), ("decoder", ["decoder"]), ("", [])]
)
def test_an_unknown_architecture_is_completed_by_its_stacks(given, sides):
    settings = {"_name": "mine_tiny", **({f"norm_{given}": "batch"} if given else {})}
    full = completed(settings)
    assert full.items() >= settings.items()
    assert [side for side in ("encoder", "decoder") if f"{side}_layers" in full] == sides
