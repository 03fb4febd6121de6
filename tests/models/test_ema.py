"""`--store-ema`: fairseq's moving average of the model takes the running statistics along."""

import copy
import shutil

import pytest
import torch
from fairseq.checkpoint_utils import save_ema_as_checkpoint
from fairseq.dataclass.configs import EMAConfig
from fairseq.models.ema import build_ema

import runs
from command import completed, rbn, user_error
from rbn_fairseq.checkpoints.files import read_checkpoint, write_checkpoint
from rbn_fairseq.norms import NORMS, has_population_norm
from small_models import BATCH, FINALS, PRE, batch, build, randomise

POPULATION = {name for name in NORMS if has_population_norm(build(norm_encoder_final=name, **PRE))}
TRAIN = (
    "--norm-encoder", "batch", "--rbn-mean-weight", 0.1, "--store-ema", "--ema-decay", 0.75,
    "--ema-fp32", "--ema-start-update", 2, "--save-interval-updates", 1, "--no-tid",
)  # fmt: skip

EXTRA = ("ema", "ema_fp32_params")


def moving_average(states, start, decay):
    """By its definition: before update ``start`` the model itself."""
    average = states[0]
    for update, state in enumerate(states, 1):
        weight = 1 - decay if update >= start else 1
        average = {
            name: (1 - weight) * average[name].double() + weight * value.double()
            for name, value in state.items()
        }
    return average


def of_interest(name):
    # Embeddings that have several names decay once for each, in fairseq's moving average.
    return "embed_tokens" not in name and "output_projection" not in name


@pytest.mark.parametrize("half", [False, True], ids=["fp32", "fp16"])
@pytest.mark.parametrize("ema_fp32", [False, True])
@pytest.mark.parametrize("norm", sorted(POPULATION))
def test_statistics_move_like_weights_and_stay_fp32(norm, ema_fp32, half):
    options = {"norm_encoder_final": norm} if norm == "mabn" else {"norm_encoder": norm}
    model = build(**options, **PRE)
    model = model.half() if half else model
    config = EMAConfig(store_ema=True, ema_decay=0.75, ema_start_update=3, ema_fp32=ema_fp32)
    ema = build_ema(model, config, torch.device("cpu"))
    states = []
    for update in range(1, 7):
        for name, value in model.state_dict().items():
            if "version" not in name:
                value.copy_(torch.rand(value.shape))
        states.append({name: value.clone() for name, value in model.state_dict().items()})
        ema.step(model, update)
    expected = moving_average(states, start=3, decay=0.75)
    statistics = {name for name in expected if ".population." in name}
    assert statistics
    average = ema.get_model().state_dict()
    assert average.keys() == expected.keys()
    for name in filter(of_interest, average):
        # fp16 rounds at 2^-11 in every update; what fp32 keeps is rounded once, at the end
        tolerance = 1e-6 if name in statistics or not half else 2e-3
        torch.testing.assert_close(average[name].double(), expected[name], rtol=0, atol=tolerance)
    for name in statistics:
        assert average[name].dtype == torch.float32
        assert not torch.equal(average[name], model.state_dict()[name])


@pytest.mark.parametrize("placement", [{}, PRE | FINALS], ids=["post", "pre"])
def test_the_average_is_a_model_like_the_trained_one(placement):
    options = BATCH | placement | {"checkpoint_activations": True, "encoder_layerdrop": 0.5}
    model, other = build(**options), build(**options)
    ema = build_ema(model, EMAConfig(store_ema=True, ema_decay=0.75), torch.device("cpu"))
    randomise(model)
    ema.step(model, 1)
    average = copy.deepcopy(ema.get_model().state_dict())
    model.train()(*batch())[0].sum().backward()
    assert all(torch.equal(v, average[n]) for n, v in ema.get_model().state_dict().items())
    other.load_state_dict(average)
    assert torch.equal(other.eval()(*batch())[0], ema.get_model().eval()(*batch())[0])
    with_norm = [m.encoder.layer_norm is not None for m in (model, other, ema.get_model())]
    assert with_norm == [bool(placement)] * 3


@pytest.fixture(scope="module")
def whole(data_bin, tmp_path_factory):
    """Directory with the checkpoints of three updates."""
    directory = tmp_path_factory.mktemp("ema")
    runs.train(data_bin, directory, *TRAIN, "--max-update", 3)
    return directory


def checkpoint(directory, update):
    return read_checkpoint(directory / f"checkpoint_1_{update}.pt")


def test_resumed_training_is_the_same(data_bin, tmp_path, whole):
    shutil.copy(whole / "checkpoint_1_2.pt", tmp_path / "checkpoint_last.pt")
    runs.train(data_bin, tmp_path, *TRAIN, "--max-update", 3)
    for kind in EXTRA:
        expected, actual = (checkpoint(d, 3)["extra_state"][kind] for d in (whole, tmp_path))
        assert actual.keys() == expected.keys()
        assert all(torch.equal(value, expected[name]) for name, value in actual.items())


def recalibrated(path, data_bin, output, *options):
    completed("recalibrate", path, "--data", data_bin, "--output", output, "--batches", 2, *options)
    return read_checkpoint(output)


def test_the_average_is_a_checkpoint_of_its_own(data_bin, whole, tmp_path):
    last = whole / "checkpoint_1_3.pt"
    by_fairseq, own = tmp_path / "fairseq.pt", tmp_path / "own.pt"
    save_ema_as_checkpoint(str(last), str(by_fairseq))
    average = read_checkpoint(by_fairseq)["model"]
    expected = recalibrated(by_fairseq, data_bin, tmp_path / "expected.pt")["model"]
    state = recalibrated(last, data_bin, own, "--ema")
    assert state["model"].keys() == expected.keys()
    for name, value in state["model"].items():
        assert torch.equal(value, expected[name]), name
        assert torch.equal(value, average[name]) != (".population." in name), name
    note = {"batches": 2, "seed": 1, "population": "mean-of-batches"}
    assert state["rbn_fairseq"] == {"moving_average": str(last), "recalibrated": note}
    # Neither is of these weights.
    assert "last_optimizer_state" not in state and not {*state["extra_state"]} & {*EXTRA}
    assert {*read_checkpoint(last)["extra_state"]} >= {*EXTRA}
    assert len(runs.generate(data_bin, own)) == 61
    told = " ".join(rbn("doctor", "--checkpoint", own).output.split())
    assert "made by `rbn`: moving_average, recalibrated" in told


def test_no_average(capsys, data_bin, tmp_path):
    path, output = tmp_path / "without.pt", tmp_path / "out.pt"
    write_checkpoint(path, {"model": {}, "extra_state": {"epoch": 1}})
    message = user_error(
        capsys, "recalibrate", path, "--data", data_bin, "--output", output, "--ema"
    )
    assert all(words in message for words in ("--ema", str(path), "--store-ema"))
    assert not output.exists()
