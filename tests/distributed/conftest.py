import pytest

from processes import on_processes


@pytest.fixture(scope="module")
def ranks(request, tmp_path_factory):
    """What the module's ``work(rank)`` returns, by rank: processes start once for all tests."""
    return on_processes(request.module.work, tmp_path_factory.mktemp("ranks"))
