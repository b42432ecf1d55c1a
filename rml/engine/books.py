"""The lock of all books: who uses which page, which sequences there are.

What is entered takes microseconds, so one lock serves all models of a process. It is never held
while a kernel runs or while anybody else's code does.
"""

import os
import threading

__all__ = ["BOOKS"]

BOOKS = threading.RLock()  # a signal handler may come while its own thread holds it
# A child of a fork finds the books in order and the lock free.
os.register_at_fork(
    before=BOOKS.acquire, after_in_parent=BOOKS.release, after_in_child=BOOKS.release
)
