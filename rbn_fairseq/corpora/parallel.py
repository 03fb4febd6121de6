"""Lines in, as many lines out, in their order, several processes at a time."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future
from itertools import islice

__all__ = ["map_chunks"]

_LINES = 5_000


def map_chunks(
    function: Callable[[list[str]], list[str]],
    lines: Iterable[str],
    executor: Executor,
    ahead: int,
    size: int = _LINES,
) -> Iterator[str]:
    """Apply ``function`` to runs of ``size`` lines.

    Args:
        function: makes a list of a list, equally long.
        lines: are read no further ahead than needed, because they may not fit in memory.
        executor: runs the function.
        ahead: chunks that may wait for their turn.
        size: lines of a chunk.
    """
    rest = iter(lines)
    waiting: deque[Future[list[str]]] = deque()
    while chunk := list(islice(rest, size)):
        waiting.append(executor.submit(function, chunk))
        if len(waiting) > ahead:
            yield from waiting.popleft().result()
    while waiting:
        yield from waiting.popleft().result()
