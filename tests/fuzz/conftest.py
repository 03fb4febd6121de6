"""How many examples: a few, always the same ones, or RBN_FUZZ_EXAMPLES of chance per test.

`RBN_FUZZ_EXAMPLES=300 pytest -n 0 tests/fuzz` searches. What fails prints how to repeat it;
`--hypothesis-seed=N` repeats a whole search.
"""

import os

from hypothesis import HealthCheck, settings

_SEARCH = os.environ.get("RBN_FUZZ_EXAMPLES")

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
