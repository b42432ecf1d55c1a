"""The result of a scan."""

from dataclasses import dataclass, field
from typing import Any

__all__ = ["FileFacts", "Finding", "Report"]


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that deserves a look.

    Attributes
    ----------
    kind : str
        ``"checksum"``, ``"structure"``, ``"metadata"``, ``"weights"``, ``"template"`` or
        ``"tokens"``.
    where : str
        The tensor, key, template or file that it is about.
    what : str
        One sentence.
    count : int
        How many of it there are.
    """

    kind: str
    where: str
    what: str
    count: int = 1


@dataclass(frozen=True, slots=True)
class FileFacts:
    """A file that was read.

    Attributes
    ----------
    path : str
        Where it lies.
    size : int
        Bytes.
    sha256 : str
        Digest of its content.
    receipt : str
        ``"same"`` or ``"different"``, if a receipt of the cache, or rml's table of known models,
        states its digest; else empty.
    """

    path: str
    size: int
    sha256: str
    receipt: str = ""


@dataclass(slots=True)
class Report:
    """What a scan found.

    Attributes
    ----------
    path : str
        What was scanned.
    format : str
        ``"gguf"``, ``"safetensors"`` or ``"tokenizer"``.
    files : list of FileFacts
        Files of the model, side files included.
    findings : list of Finding
        What deserves a look; empty if the model is clean.
    facts : dict
        What was looked at, for those who wonder whether it was: numbers of tensors and values,
        templates, end tokens.
    """

    path: str
    format: str
    files: list[FileFacts] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def is_clean(self) -> bool:
        """Whether nothing was found."""
        return not self.findings
