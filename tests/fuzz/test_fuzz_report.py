"""Files of a run that anybody may have written: read, or told to be unreadable."""

import json
import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from run_directories import configuration, log_text, tid_line

from rbn_fairseq.report.content import sections
from rbn_fairseq.report.records import Conditioning, Cost, LayerTID, TIDPoint, read_lines
from rbn_fairseq.report.runs import read_run, read_runs

FILES = ["train.log", "tid.jsonl", "conditioning.jsonl", "tid_batching.jsonl", "cost.jsonl"]
FILES += ["score.json"]
NUMBERS = st.one_of(st.integers(), st.floats(), st.sampled_from([10**400, -(10**400), 2**63]))
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), NUMBERS, st.text(max_size=9)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)
COST = {"statistics": "running", "nll": 4.0, "cost": 0.1, "update": 100}
INPUT = {
    "epoch": 1, "update": 100, "layer": 1, "place": "stream", "c_50": 2.0, "c_80": 9.0,
    "c_max": 9.0,
}  # fmt: skip
SCORE = {"sacrebleu": {"bleu": 30.0, "brevity_penalty": 1.0, "signature": "nrefs:1"}}
RIGHT = {
    "tid.jsonl": tid_line(1, 0, 0.1, 0.2),
    "tid_batching.jsonl": tid_line(1, 0, 0.1, 0.2, batching="random"),
    "cost.jsonl": COST,
    "conditioning.jsonl": INPUT,
    "score.json": SCORE,
}
LOG = log_text(configuration(), [5.0, 4.0])
DEEP = b"[" * 100_000


@st.composite
def records(draw):
    """A line that is right but for some of its values, or anything that is JSON."""
    if draw(st.booleans()):
        return draw(VALUES)
    line = dict(draw(st.sampled_from(list(RIGHT.values()))))
    wrong = draw(st.lists(st.sampled_from(sorted(line)), max_size=2))
    return line | {name: draw(VALUES) for name in wrong}


@st.composite
def contents(draw):
    """Bytes: of JSON lines, of a log that was changed, of chance."""
    kind = draw(st.sampled_from(["records", "log", "bytes", "deep"]))
    if kind == "records":
        lines = "\n".join(map(json.dumps, draw(st.lists(records(), max_size=4))))
        text = lines.encode()
    elif kind == "log":
        at, less = draw(st.integers(0, len(LOG))), draw(st.integers(0, 20))
        text = (LOG[:at] + draw(st.text(max_size=9)) + LOG[at + less :]).encode(errors="replace")
    elif kind == "deep":
        return draw(st.sampled_from([DEEP, b'{"epoch": ' + DEEP, b"{'_name': " + DEEP]))
    else:
        return draw(st.binary(max_size=60))
    return text[: draw(st.integers(0, len(text)))] if draw(st.booleans()) else text


@given(contents())
def test_lines(content):
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "lines.jsonl")
        path.write_bytes(content)
        for kinds in ((TIDPoint, LayerTID), (Cost,), (Conditioning,)):
            problems = []
            read = read_lines(path, problems, *kinds)
            whole = [line for line in content.decode(errors="replace").splitlines() if line.strip()]
            assert len(problems) == (len(read) < len(whole))


@given(st.dictionaries(st.sampled_from(FILES), contents(), min_size=1))
def test_runs(files):
    with tempfile.TemporaryDirectory() as directory:
        for name, content in files.items():
            Path(directory, name).write_bytes(content)
        run = read_run("run", Path(directory))
        assert all(isinstance(problem, str) for problem in run.problems)
        try:
            read_runs([("run", Path(directory))])
        except ValueError as error:
            assert "nothing to report" in str(error)


SETTINGS = configuration()


@st.composite
def configurations(draw):
    """fairseq's, but for a section or one of its values."""
    section = draw(st.sampled_from(sorted(SETTINGS)))
    if draw(st.booleans()) or not SETTINGS[section]:
        return SETTINGS | {section: draw(VALUES)}
    name = draw(st.sampled_from(sorted(SETTINGS[section])))
    return SETTINGS | {section: SETTINGS[section] | {name: draw(VALUES)}}


@given(st.sampled_from(list(RIGHT)), records(), st.text(max_size=9), configurations())
def test_pages(name, record, called, settings):
    with tempfile.TemporaryDirectory() as directory:
        for file, right in RIGHT.items():
            lines = [right, record] if file == name else [right]
            Path(directory, file).write_text("\n".join(map(json.dumps, lines)))
        if name == "score.json":
            Path(directory, name).write_text(json.dumps(record))
        log = f"{settings}\n{LOG.partition(chr(10))[2]}"
        Path(directory, "train.log").write_text(log, errors="replace")
        run = read_run(called, Path(directory))
        for section in sections([run]):
            assert section.title
