"""Ctrl-C as a request to stop one answer, not the program."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["on_interrupt"]


@contextmanager
def on_interrupt(stop: Callable[[], object]) -> Iterator[None]:
    """Call `stop` at the first Ctrl-C while the block runs; a second one interrupts as usual."""

    def handle(_signal: int, _frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, before)
        stop()

    before = signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
