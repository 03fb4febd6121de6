"""What TensorBoard is given, read back from its files."""

import struct
from dataclasses import replace

import pytest
import torch
from tensorboardX.proto.event_pb2 import Event

import runs
from rbn_fairseq.diagnostics import LayerMoments
from rbn_fairseq.measuring.records import norm_records, write_layers


def read_events(directory):
    """Values by (tag, step): TFRecord frames are length, checksum, Event, checksum."""
    values = {}
    for path in sorted(directory.iterdir()):
        data, at = path.read_bytes(), 0
        while at < len(data):
            (length,) = struct.unpack("<Q", data[at : at + 8])
            event = Event.FromString(data[at + 12 : at + 12 + length])
            at += length + 16
            for value in event.summary.value:
                kind = value.WhichOneof("value")
                values[value.tag, event.step] = (kind, getattr(value, kind))
    return values


def test_scalars_of_every_layer(tmp_path):
    mean = torch.tensor([[1.0, 5.0], [3.0, 5.0]] * 2).double()
    moments = LayerMoments(mean, torch.ones(4, 2).double(), torch.ones(4).double())
    lengths = torch.tensor([4.0, 4.0, 6.0, 6.0]).double()
    layers = {"encoder.0": moments, "encoder.1": replace(moments, length=lengths)}
    for update in (10, 20):
        records = norm_records(layers, 1, update, 4)
        write_layers(tmp_path, records)
    values = read_events(tmp_path / "norms")
    assert {step for _, step in values if _} == {10, 20}
    for layer in layers:
        kind, value = values[f"mean_tid/{layer}", 20]
        assert kind == "simple_value" and value == pytest.approx(1 / 2**0.5)
        assert (f"mean_lag/{layer}", 20) not in values  # there are no running statistics
    assert values["mean_conditional_tid/encoder.1", 20][1] == pytest.approx(1)  # of groups of two
    assert values["var_conditional_tid/encoder.1", 20][1] == 0
    assert ("mean_conditional_tid/encoder.0", 20) not in values


def test_a_training_writes_them_beside_fairseqs_own(data_bin, tmp_path):
    runs.train(
        data_bin, tmp_path / "save", "--norm-encoder", "batch", "--tid-batches", 2,
        "--tensorboard-logdir", tmp_path / "logs", "--max-epoch", 1, "--no-save",
    )  # fmt: skip
    values = read_events(tmp_path / "logs" / "norms")
    rows = runs.tid_rows(tmp_path / "save")
    assert len(rows) == 8
    for row in rows:
        found = values[f"mean_tid/{row['layer']}", row["update"]][1]
        assert found == pytest.approx(row["mean_tid"], rel=1e-6)
    assert (tmp_path / "logs" / "train").is_dir()
