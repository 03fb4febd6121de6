"""A model learns: unseen number phrases are translated word for word."""

import pytest

import runs


@pytest.mark.nightly
def test_learns(data_bin, corpus, tmp_path):
    runs.train(
        data_bin, tmp_path, *runs.RBN, "--max-update", 240, "--no-tid",
        "--validate-interval", 100, "--no-epoch-checkpoints", "--dropout", 0,
    )  # fmt: skip
    hypotheses = runs.generate(data_bin, tmp_path / "checkpoint_last.pt")
    references = (corpus / "test.en").read_text().splitlines()
    right = sum(hypotheses[i] == reference for i, reference in enumerate(references))
    # An untrained model gets none.
    assert right / len(references) > 0.5
