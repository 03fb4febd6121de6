import pytest
from sections import ABOUT, make_sections

from rbn_fairseq.report.export import write_report


@pytest.fixture(scope="session")
def report(tmp_path_factory):
    """Directory of a report and the files that were written; read only."""
    directory = tmp_path_factory.mktemp("report")
    return directory, write_report(directory, "Title", make_sections(), ABOUT)
