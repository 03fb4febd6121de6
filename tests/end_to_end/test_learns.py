"""Models learn: unseen number phrases are translated word for word."""

import pytest

import runs

NORMS = {
    "bn": ("--norm-encoder", "batch"),
    "rbn": ("--norm-encoder", "batch", "--rbn-mean-weight", 0.1, "--rbn-std-weight", 0.1),
}


@pytest.mark.parametrize("norm, pre", [("bn", ""), ("rbn", "pre")])
def test_learns(data_bin, corpus, tmp_path, norm, pre):
    placement = ("--encoder-normalize-before", "--decoder-normalize-before") if pre else ()
    runs.train(
        data_bin, tmp_path, *NORMS[norm], *placement, "--max-update", 240, "--no-tid",
        "--validate-interval", 100, "--no-epoch-checkpoints", "--dropout", 0,
    )  # fmt: skip
    hypotheses = runs.generate(data_bin, tmp_path / "checkpoint_last.pt")
    references = (corpus / "test.en").read_text().splitlines()
    right = sum(hypotheses[i] == reference for i, reference in enumerate(references))
    # An untrained model gets none.
    assert right / len(references) > 0.5
