"""docs/adding-a-norm.md: its code runs, its commands train, and its norm is what the page says."""

import json
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import nn

import runs
from rbn_fairseq.checkpoints.files import own_settings, read_checkpoint
from rbn_fairseq.cli.inspection import check_checkpoint
from rbn_fairseq.models import config
from rbn_fairseq.norms import (
    _FOLLOWERS,
    NORMS,
    Norm,
    NormOptions,
    NormPlace,
    build_norm,
    register_norm,
)
from rbn_fairseq.norms.options import option

PAGE = Path(__file__).resolve().parent.parent / "docs" / "adding-a-norm.md"
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)


@pytest.fixture
def norms(monkeypatch):
    """The registry, which is as it was before when the test is over; so are fairseq's options."""
    registry = dict(NORMS)
    yield monkeypatch
    NORMS.clear()
    NORMS.update(registry)
    for follow in _FOLLOWERS:
        follow()


@pytest.fixture
def page(norms):
    """Names that the page's code defines; its norm is registered for one test."""
    assert len(BLOCKS) == 4
    module = ModuleType("page")
    norms.setitem(sys.modules, "page", module)  # where dataclasses look their module up
    for block in BLOCKS[:3]:
        exec(compile(block, str(PAGE), "exec"), vars(module))
    return vars(module)


@pytest.fixture(scope="module")
def mine(tmp_path_factory):
    """The page's code as a directory for --user-dir."""
    directory = tmp_path_factory.mktemp("code") / "mine"
    directory.mkdir()
    (directory / "__init__.py").write_text("\n".join(BLOCKS[:2]))
    return directory


def run(tools, *arguments):
    words = [str(tools / arguments[0]), *map(str, arguments[1:])]
    return subprocess.run(words, capture_output=True, text=True)


def train_arguments(user_dir, *given):
    """Arguments of a training with code of one's own in the place of the package."""
    arguments = runs.train_arguments(*given)
    arguments[arguments.index("--user-dir") + 1] = str(user_dir)
    return arguments


def test_its_norm_is_what_its_docstring_says(page):
    """Also where the floor is larger, with options, in fp64's precision, and behind another."""
    assert NORMS["peak"] is page["PeakNorm"]
    norm = build_norm(["peak"], NormPlace(3), {"peak": page["PeakNormOptions"](floor=2.0)})
    x = torch.tensor([[3.0, -7.0, 1.0], [0.1, 0.0, -1.0], [0.0, 0.0, 0.0]], dtype=torch.double)
    divisors = torch.tensor([[7.0], [2.0], [2.0]], dtype=torch.double)
    # Divided once, then times 1.
    torch.testing.assert_close(norm.double()(x), x / divisors, rtol=1e-15, atol=0)
    y = build_norm(["groupscale", "peak"], NormPlace(8, heads=2), {})(torch.randn(3, 2, 8))
    assert torch.equal(y.abs().amax(-1), torch.ones(3, 2))


def test_its_options_become_fields(page):
    fields = {name: (kind, field) for name, kind, field in config.norm_fields()}
    kind, field = fields["norm_peak_floor"]
    assert kind is float and field.default == 1e-3 and "smallest divisor" in field.metadata["help"]
    with pytest.raises(ValueError, match="--norm-peak-floor.*positive.*-1"):
        page["PeakNormOptions"](floor=-1)


@dataclass(frozen=True)
class BeginsAsTrue(NormOptions, norm="mine"):
    center: bool = option(True, "subtract the mean")


@dataclass(frozen=True)
class PlainField(NormOptions, norm="mine"):
    floor: float = 1e-3


def norm_of(name, options=NormOptions):
    return type("Mine", (Norm,), {"name": name, "options_type": options, "summary": "mine"})


@pytest.mark.parametrize(
    "norm, words",
    [
        (norm_of("batch"), "there is a norm `batch` already"),
        (norm_of("my-norm"), "`my-norm` must be lower-case letters"),
        (norm_of("mine", dict), "must be a dataclass"),
        (norm_of("mine", NORMS["layer"].options_type), 'norm="mine"'),
        (
            norm_of("mine", dataclass(frozen=True)(type("Unnamed", (NormOptions,), {}))),
            'norm="mine"',
        ),
        (norm_of("mine", type("Bare", (NormOptions,), {}, norm="mine")), "must be a dataclass"),
        (norm_of("mine", PlainField), r"option\(\)"),
        (norm_of("mine", BeginsAsTrue), "`center` of `mine` begins as True"),
        (type("Mine", (Norm,), {"name": "mine"}), "a `summary`"),
        (type("Mine", (nn.Module,), {"name": "mine", "summary": "mine"}), "must be a Norm"),
    ],
)
def test_what_cannot_be_registered(norms, norm, words):
    with pytest.raises(ValueError, match=words):
        register_norm(norm)
    assert NORMS.get(norm.name) is not norm


def test_it_trains(mine, data_bin, forked, tmp_path):
    (tmp_path / "link").symlink_to(mine.parent)
    options = train_arguments(
        tmp_path / "link" / mine.name, data_bin, tmp_path / "run",
        "--norm-encoder", "peak@0:batch", "--norm-peak-floor", 0.25, "--max-update", 2,
    )  # fmt: skip
    done = run(forked, "rbn", "train", *options)
    assert done.returncode == 0, done.stderr
    last = tmp_path / "run" / "checkpoint_last.pt"
    cfg = read_checkpoint(last)["cfg"]
    settings = cfg["model"]
    assert (settings["norm_encoder"], settings["norm_peak_floor"]) == ("peak@0:batch", 0.25)
    assert Path(cfg["common"]["user_dir"]).resolve() == mine  # which other processes load
    assert "encoder.layers.0.final_layer_norm.weight" in read_checkpoint(last)["model"]

    json_file = tmp_path / "tid.json"
    done = run(forked, "rbn", "tid", last, "--user-dir", mine, "--json", json_file)
    assert done.returncode == 0, done.stderr
    assert {row["layer"].split(".")[2] for row in json.loads(json_file.read_text())} == {"1"}
    done = run(forked, "rbn", "tid", last)  # what the checkpoint names is not loaded
    assert done.returncode == 2 and "unknown norm `peak`" in done.stderr
    assert "--user-dir" in done.stderr and len(done.stderr.splitlines()) == 1


def test_it_is_evaluated(mine, forked, tmp_path):
    """Every command that opens a model gets --user-dir; what has running statistics is known."""
    directory, data = tmp_path / "mine", tmp_path / "bin"
    for path in (directory, data):
        path.mkdir()
    (directory / "__init__.py").write_text(
        "from dataclasses import dataclass\n"
        "from rbn_fairseq.norms import BatchNorm, BatchNormOptions, register_norm\n"
        "@dataclass(frozen=True)\n"
        "class OwnOptions(BatchNormOptions, norm='own'): pass\n"
        "class Own(BatchNorm): name, options_type, summary = 'own', OwnOptions, 'batch norm'\n"
        "register_norm(Own)\n"
    )
    (data / "about.json").write_text(json.dumps({"corpus": "IWSLT14 De-En"}))

    def evaluate(norm, *options):
        config = {"task": {"data": str(data), "target_lang": "en"}, "model": {"norm_encoder": norm}}
        settings = {"config": config | {"optimization": {}}}
        (tmp_path / "run.json").write_text(json.dumps(settings))
        return run(forked, "rbn", "evaluate", "--dry-run", tmp_path, *options)

    opening = {"average", "recalibrate", "generate"}
    for code, norm, verbs in (
        (mine, "peak", ["average", "generate", "score"]),
        (directory, "own", ["average", "recalibrate", *["generate", "score"] * 2]),
    ):
        done = evaluate(norm, "--user-dir", code)
        assert done.returncode == 0, done.stderr
        commands = [shlex.split(line)[1:] for line in done.stdout.splitlines()]
        assert [verb for verb, *_ in commands] == verbs
        for verb, *words in commands:
            assert (words[-2:] == ["--user-dir", str(code)]) == (verb in opening)
        done = evaluate(norm)
        assert done.returncode == 2 and f"unknown norm `{norm}`" in done.stderr
        assert str(tmp_path) in done.stderr and "--user-dir" in done.stderr


def test_hydra_knows_it(mine, data_bin, forked, tmp_path):
    done = run(
        forked, "rbn", "hydra-train", "--user-dir", mine, "--config-name", "default",
        f"task.data={data_bin}", "preset=small", "model.norm_encoder=peak",
        "+model.norm_peak_floor=0.5", "common.cpu=true", "optimization.max_update=1",
        f"hydra.run.dir={tmp_path}", "criterion.rbn_mean_weight=0",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (
        read_checkpoint(tmp_path / "checkpoint_last.pt")["cfg"]["model"]["norm_peak_floor"] == 0.5
    )


def test_its_options_are_listed(mine, forked):
    assert "--norm-peak-floor" in run(forked, "rbn", "options", "--user-dir", mine).stdout
    assert "peak" in run(forked, "rbn", "norms", "--user-dir", mine).stdout


def test_errors_of_ones_own_code_are_one_line(mine, data_bin, forked, tmp_path):
    given = (data_bin, tmp_path / "run", "--norm-encoder", "peak", "--norm-peak-floor", -1)
    options = train_arguments(mine, *given)
    done = run(forked, "rbn", "train", *options)
    assert done.returncode == 2 and done.stderr.startswith("rbn: error: --norm-peak-floor must")
    assert len(done.stderr.splitlines()) == 1


def test_an_architecture_of_ones_own(mine, data_bin, forked, tmp_path):
    directory = tmp_path / "models"
    directory.mkdir()
    (directory / "__init__.py").write_text("\n".join([*BLOCKS[:2], BLOCKS[3]]))
    options = train_arguments(
        directory, data_bin, tmp_path / "run", "--arch", "mine_tiny", "--norm-encoder", "peak",
        "--max-update", 1,
    )  # fmt: skip
    done = run(forked, "fairseq-train", *options)
    assert done.returncode == 0, done.stderr
    checkpoint = tmp_path / "run" / "checkpoint_last.pt"
    settings = own_settings(checkpoint, read_checkpoint(checkpoint))["model"]
    assert (settings["_name"], settings["norm_peak_floor"]) == ("mine_tiny", 1e-3)
    (_, found), *_ = check_checkpoint(checkpoint)
    assert "mine_tiny, --norm-encoder peak" in found


@pytest.mark.parametrize(
    "content, words",
    [(None, "--user-dir"), ({}, "no __init__.py"), ({"rbn_fairseq/__init__.py": ""}, "--user-dir")],
)
def test_a_user_dir_that_is_none(forked, tmp_path, content, words):
    directory = tmp_path / "code"
    for name, text in (content or {}).items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text(text)
    if content == {}:
        directory.mkdir()
    done = run(forked, "rbn", "norms", "--user-dir", directory)
    assert done.returncode == 2 and words in done.stderr, done.stderr


def test_a_link_to_the_package_is_the_package(forked, data_bin, tmp_path):
    (tmp_path / "plugin").symlink_to(runs.USER_DIR)
    options = train_arguments(tmp_path / "plugin", data_bin, tmp_path / "run", "--check")
    done = run(forked, "rbn", "train", *options)
    assert done.returncode == 0, done.stderr
