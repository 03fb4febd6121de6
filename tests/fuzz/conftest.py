"""How many examples: a few, always the same ones, or RBN_FUZZ_EXAMPLES of chance per test.

`RBN_FUZZ_EXAMPLES=300 pytest -n 0 tests/fuzz` searches; its last line counts what it ran. What
fails prints its example; `--hypothesis-seed=N`, with the seed of the last line, repeats a search.
"""

import os
import random
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, core, settings

sys.path.append(str(Path(__file__).parent.parent / "report"))  # its helpers

_SEARCH = os.environ.get("RBN_FUZZ_EXAMPLES")
_COUNTS = pytest.StashKey[dict[str, int]]()

settings.register_profile(
    "fuzz",
    max_examples=int(_SEARCH or 12),
    derandomize=not _SEARCH,
    database=None,
    deadline=None,
    print_blob=bool(_SEARCH),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
settings.load_profile("fuzz")


def pytest_configure(config):
    config.stash[_COUNTS] = {"examples": 0}
    if _SEARCH and core.global_force_seed is None:
        core.global_force_seed = random.SystemRandom().getrandbits(32)


def pytest_collection_modifyitems(config, items):
    for item in items:
        function = getattr(item, "obj", None)
        if getattr(function, "is_hypothesis_test", False):
            _count_examples(item.config.stash[_COUNTS], function.hypothesis)


def _count_examples(counts, handle):
    if hasattr(handle.inner_test, "counted"):
        return
    inner = handle.inner_test

    def counted(*args, **kwargs):
        counts["examples"] += 1
        return inner(*args, **kwargs)

    counted.counted = True
    handle.inner_test = counted


def pytest_terminal_summary(terminalreporter, config):
    passed, failed = (
        sum("tests/fuzz/" in report.nodeid for report in terminalreporter.stats.get(kind, []))
        for kind in ("passed", "failed")
    )
    examples = config.stash[_COUNTS]["examples"]
    if examples:
        seed = f"; seed {core.global_force_seed}" if _SEARCH else ""
        told = f"fuzz: {examples:,} examples in {passed + failed} tests, {failed} failures{seed}"
        terminalreporter.write_line(told)
