"""Several generations at once.

Their steps are computed together, each with the bits that it has alone. What belongs to a caller
(masks, processors, progress) runs in the caller's thread.
"""

from collections.abc import Iterable

from rml._kernels.pages import PAGE_SIZE
from rml.engine.engine import Engine
from rml.engine.work import Evaluation
from rml.generation.results import Completion
from rml.generation.stream import Stream

__all__ = ["complete"]

_MOST_STREAMS = 32  # at work at a time


def complete(streams: Iterable[Stream], engine: Engine, kv_type: str) -> list[Completion]:
    """Run streams to their ends; what needs a caller's code is run in this thread.

    A stream begins when the memory for its full length is there beside that of the others at work,
    so that none has to be given up half-way; the first one always does.

    Parameters
    ----------
    streams : iterable of Stream
        Not begun. They are made when it is their turn, if they come from a generator.
    engine : Engine
        Computes them.
    kv_type : str
        How their keys and values are stored.

    Returns
    -------
    list of Completion
        In the order of the streams.

    Raises
    ------
    RmlError
        What ended one of them; then all are ended.
    """
    waiting = iter(streams)
    late = next(waiting, None)
    results: list[Completion | None] = []
    at_work: dict[int, Stream] = {}  # by its number
    try:
        while late is not None or at_work:
            works: list[Evaluation] = []
            for i, stream in list(at_work.items()):
                _go_on(i, stream, works, results, at_work)
            room = _room(engine, kv_type, at_work, works) if late is not None else 0
            while late is not None and len(at_work) < _MOST_STREAMS:
                needed = _needed(late)
                if at_work and needed > room:
                    break
                room -= needed
                i = len(results)
                results.append(None)
                at_work[i] = late
                _go_on(i, late, works, results, at_work)
                late = next(waiting, None)
            engine.finish(*works)
    except BaseException:
        for stream in at_work.values():
            stream.close()
        raise
    return [result for result in results if result is not None]


def _go_on(
    i: int,
    stream: Stream,
    works: list[Evaluation],
    results: list[Completion | None],
    at_work: dict[int, Stream],
) -> None:
    """Let a stream do what it can before it needs another evaluation; note its end."""
    work = stream.advance()
    if work is not None:
        works.append(work)
    else:
        results[i] = stream.result()
        del at_work[i]


def _needed(stream: Stream) -> int:
    """Positions that a stream may come to need, in whole pages."""
    return -(-stream.n_positions // PAGE_SIZE) * PAGE_SIZE


def _room(
    engine: Engine,
    kv_type: str,
    at_work: dict[int, Stream],
    works: list[Evaluation],
) -> int:
    """Positions that are free and will not be needed by those at work."""
    promised = sum(map(_needed, at_work.values()))
    taken = sum(work.sequence.n_reserved for work in works)
    return engine.store(kv_type).n_obtainable_positions - (promised - taken)
