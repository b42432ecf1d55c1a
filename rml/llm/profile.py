"""Where the time of a step goes, and how much of it the machine needs at least."""

from collections.abc import Iterable
from dataclasses import dataclass

from rml.limits import Limits
from rml.llm.operation import Operation

__all__ = ["Profile", "Timing"]


@dataclass(frozen=True, slots=True)
class Timing:
    """Time and work of one operation of a plan.

    Attributes
    ----------
    operation : Operation
    seconds : float
        Time that it took.
    n_bytes : int
        Bytes of weights, keys and values that it had to read.
    products : int
        Multiplications that it had to make; one of ``compute="int8x2"`` counts once.
    limit_seconds : float or None
        The least time in which the machine could have read or multiplied that much, whichever is
        longer; None without limits.
    """

    operation: Operation
    seconds: float
    n_bytes: int
    products: int
    limit_seconds: float | None

    @classmethod
    def of(cls, operation: Operation, seconds: float, limits: Limits | None) -> "Timing":
        """Count the work of an operation that took `seconds` just now."""
        n_bytes = operation.n_bytes
        limit = None
        if limits is not None:
            limit = limits.seconds(n_bytes, operation.products_by_kind)
        return cls(operation, seconds, n_bytes, operation.products, limit)

    @property
    def share(self) -> float | None:
        """Part of the machine's limit that was reached, from 0 to about 1; None without limits."""
        return None if self.limit_seconds is None else self.limit_seconds / self.seconds

    @property
    def gigabytes_per_second(self) -> float:
        """Rate at which weights, keys and values were read."""
        return self.n_bytes / self.seconds / 1e9

    @property
    def gigaproducts_per_second(self) -> float:
        """Rate of multiplications."""
        return self.products / self.seconds / 1e9


class Profile(list[Timing]):
    """Timings of all operations of one run of a plan, in order.

    Printed, it is a table in which equal operations of all layers are one line.

    Attributes
    ----------
    seconds : float
        Time of the whole run; what is not in the operations is what it takes to start threads.
    limits : Limits or None
        What the machine can do.
    """

    def __init__(self, timings: Iterable[Timing], seconds: float, limits: Limits | None) -> None:
        super().__init__(timings)
        self.seconds = seconds
        self.limits = limits

    @property
    def limit_seconds(self) -> float | None:
        """Sum of the operations' limits; None without limits."""
        return None if self.limits is None else sum(t.limit_seconds or 0.0 for t in self)

    @property
    def share(self) -> float | None:
        """Part of the machine's limit that the whole run reached; None without limits."""
        limit = self.limit_seconds
        return None if limit is None else limit / self.seconds

    def __str__(self) -> str:
        groups: dict[tuple[str, str, str], list[Timing]] = {}
        for timing in self:
            op = timing.operation
            types = ", ".join(dict.fromkeys(str(w.type) for w in op.weights()))
            groups.setdefault((op.kernel, op.kind, types), []).append(timing)
        head = ["kernel", "of", "weights", "n", "ms", "time", "GB/s", "G products/s"]
        rows = [self._row(*key, timings) for key, timings in groups.items()]
        rows.append(self._row("all", "", "", list(self)))
        outside = 1e3 * (self.seconds - sum(t.seconds for t in self))
        if self.limits is not None:
            head.append("of the limit")
        lines = _aligned([head, *rows], left=3)
        lines.append(f"{1e3 * self.seconds:.3f} ms, of which {outside:.3f} ms outside the kernels")
        if self.limits is not None:
            lines.append(f"limit: {self.limits}")
        return "\n".join(lines)

    def _row(self, kernel: str, kind: str, types: str, timings: list[Timing]) -> list[str]:
        seconds = sum(t.seconds for t in timings)
        n_bytes, products = sum(t.n_bytes for t in timings), sum(t.products for t in timings)
        row = [
            kernel,
            kind,
            types,
            str(len(timings)),
            f"{1e3 * seconds:.3f}",
            f"{seconds / self.seconds:.1%}",
            f"{n_bytes / seconds / 1e9:.2f}" if n_bytes else "",
            f"{products / seconds / 1e9:.1f}" if products else "",
        ]
        if self.limits is not None:
            limit = sum(t.limit_seconds or 0.0 for t in timings)
            row.append(f"{limit / seconds:.0%}" if limit else "")
        return row


def _aligned(rows: list[list[str]], left: int) -> list[str]:
    """Lines with columns of equal width; the first `left` of them begin at the left."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if i < left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
