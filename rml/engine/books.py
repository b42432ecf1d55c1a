"""The lock of all books: who uses which page, which sequences there are.

What is entered takes microseconds, so one lock serves all models of a process. It is never held
while a kernel runs or while anybody else's code does. Who needs both it and `RUNNING` takes
`RUNNING` first.
"""

import os
import threading

from rml.llm.plan import RUNNING

__all__ = ["BOOKS"]

BOOKS = threading.RLock()  # a signal handler may come while its own thread holds it


def _before_fork() -> None:
    RUNNING.acquire()  # a child could never end the step under way
    BOOKS.acquire()


def _after_fork() -> None:
    BOOKS.release()
    RUNNING.release()


# A child of a fork finds the books in order and the locks free.
os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)
