"""A disk that is full: which errors are taken for it, and what the message says."""

import errno
import os

import pytest

from rbn_fairseq.cli.train import _full_disk_as_user_error as full_disk_as_user_error


def refusal(number):
    return OSError(number, os.strerror(number))


def by_torch():
    """As torch raises it: the system's refusal is behind another error."""
    try:
        raise refusal(errno.ENOSPC)
    except OSError:
        raise RuntimeError("unexpected pos 64 vs 0")  # noqa: B904


def no_quota():
    raise refusal(errno.EDQUOT)


@pytest.mark.parametrize("fail", [by_torch, no_quota])
def test_full(tmp_path, fail):
    (tmp_path / "checkpoint3.pt.tmp").write_bytes(b"half")
    with pytest.raises(ValueError) as error, full_disk_as_user_error(tmp_path):
        fail()
    message = str(error.value)
    assert str(tmp_path) in message and "[Errno " in message and "starts anew" in message
    assert "\n" not in message and not list(tmp_path.iterdir())


def test_names_the_checkpoint_that_is_left(tmp_path, rbn_run):
    os.symlink(rbn_run / "checkpoint2.pt", tmp_path / "checkpoint2.pt")
    with pytest.raises(ValueError, match="checkpoint2.pt.*resumes"):
        with full_disk_as_user_error(tmp_path):
            no_quota()


@pytest.mark.parametrize("error", [refusal(errno.EACCES), RuntimeError("out of memory")])
def test_other_errors_pass(tmp_path, error):
    with pytest.raises(type(error)) as found, full_disk_as_user_error(tmp_path):
        raise error
    assert found.value is error
