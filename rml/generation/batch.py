"""Several generations at once.

Their steps are computed together, each with the bits that it has alone. What belongs to a caller
(masks, processors, progress) runs in the caller's thread.
"""

from collections.abc import Iterable
from contextlib import ExitStack

from rml.engine.engine import Engine
from rml.generation.results import Completion
from rml.generation.stream import Stream

__all__ = ["complete"]

_MOST_STREAMS = 32  # at work at a time


def complete(streams: Iterable[Stream], engine: Engine) -> list[Completion]:
    """Run streams to their ends; what needs a caller's code is run in this thread.

    Parameters
    ----------
    streams : iterable of Stream
        They are made when it is their turn, if they come from a generator.
    engine : Engine
        Computes them.

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
    at_work: dict[int, tuple[Stream, ExitStack]] = {}  # by its number

    def done() -> bool:
        for stream, _ in at_work.values():  # noqa: SIM110 - asked after every step
            if stream.needs_attention:
                return True
        return False

    try:
        while late is not None or at_work:
            while late is not None and len(at_work) < _MOST_STREAMS:
                i = len(results)
                results.append(None)
                late.read_all()
                at_work[i] = late, ExitStack()
                at_work[i][1].enter_context(late.at_work())
                late = next(waiting, None)
            engine.wait(done)
            for i, (stream, used) in list(at_work.items()):
                stream.attend()
                if stream.ended:
                    used.close()
                    results[i] = stream.result()
                    del at_work[i]
    except BaseException:
        for stream, used in at_work.values():
            used.close()
            stream.close()
        raise
    return [result for result in results if result is not None]
