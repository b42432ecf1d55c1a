"""Every exception that rml raises on purpose.

One base class, so that a program can catch "something rml said" in one place:

    RmlError
    ├── ArgumentError (also a ValueError)   a call's arguments are wrong
    ├── CheckpointError                     a file is broken, truncated or inconsistent
    │   └── SaveError (also an OSError)     a file cannot be written
    ├── UnsupportedModel                    a sound file that asks for what rml does not do
    ├── TokenizerError                      a vocabulary or its rules cannot be used
    ├── TemplateError                       a chat template is missing, wrong or refuses
    ├── ContextOverflow                     more tokens than the context holds
    ├── OutOfMemory (also a MemoryError)    more memory than this process can get
    ├── NumericError                        a result that is not a finite number
    ├── GrammarError                        a constraint that cannot be compiled
    ├── Cancelled                           a step was given up because cancel() was called
    ├── ClosedError                         use of a model or session after close()
    └── DownloadError                       a model could not be fetched or verified

A message names the file, the thing, what was found, what was expected and, where it can be
known, what to do next. Names in it may be those of strangers: as a text, a message shows control
characters as escapes, so that printing it changes no terminal and breaks no encoding.
"""

import re

__all__ = [
    "ArgumentError",
    "Cancelled",
    "CheckpointError",
    "ClosedError",
    "ContextOverflow",
    "DownloadError",
    "GrammarError",
    "NumericError",
    "OutOfMemory",
    "RmlError",
    "SaveError",
    "TemplateError",
    "TokenizerError",
    "UnsupportedModel",
]

# C0 and C1 controls but line feed and tab; DEL; separators of lines and overrides of direction;
# halves of surrogate pairs, which no encoding has.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str) -> str:
    """Show control characters as escapes, as Python's `ascii` writes them."""
    return _CONTROL.sub(lambda match: ascii(match.group())[1:-1], text)


class RmlError(Exception):
    """Base class of all errors that rml raises on purpose."""

    def __str__(self) -> str:
        return printable(super().__str__())


class ArgumentError(RmlError, ValueError):
    """An argument has the wrong type, shape or value; nothing has changed."""


class CheckpointError(RmlError):
    """A model file is missing, broken, truncated or contradicts itself."""


class SaveError(CheckpointError, OSError):
    """A file cannot be written; one that was at its place is as it was."""


class UnsupportedModel(RmlError):
    """The file is sound, but asks for arithmetic or a format that rml does not implement."""


class TokenizerError(RmlError):
    """A vocabulary is broken, or its splitting rule is unknown."""


class TemplateError(RmlError):
    """A chat template is missing, does not compile, or refused the messages."""


class ContextOverflow(RmlError):
    """The tokens do not fit the context; nothing has changed.

    Attributes
    ----------
    needed : int
        Positions that the call asked for, those already in use included.
    limit : int
        Positions that the context holds.
    """

    def __init__(self, needed: int, limit: int, advice: str = "") -> None:
        self.needed = needed
        self.limit = limit
        self.advice = advice
        super().__init__(
            f"{needed} tokens are needed, but the context holds {limit}"
            + (f"; {advice}" if advice else "")
        )

    def __reduce__(self) -> tuple[type["ContextOverflow"], tuple[int, int, str]]:
        return type(self), (self.needed, self.limit, self.advice)


class OutOfMemory(RmlError, MemoryError):
    """More memory is needed than this process can get; nothing has changed.

    Attributes
    ----------
    needed : int or None
        Bytes that were asked for; None where nobody knows.
    available : int or None
        Bytes that there were; None where the system does not say.
    largest_context : int or None
        Tokens of the longest context that would have fitted; None where it was about something
        else.
    """

    def __init__(
        self,
        message: str,
        *,
        needed: int | None = None,
        available: int | None = None,
        largest_context: int | None = None,
    ) -> None:
        super().__init__(message)
        self.needed = needed
        self.available = available
        self.largest_context = largest_context


class NumericError(RmlError):
    """A logit or score is NaN or infinite where it must be a number."""


class GrammarError(RmlError):
    """A grammar or schema cannot be compiled."""


class Cancelled(RmlError):
    """A step was given up because somebody asked for it; nothing has changed."""


class ClosedError(RmlError):
    """A model, session or file was used after it was closed."""


class DownloadError(RmlError):
    """A model could not be fetched, or what arrived is not what was promised."""
