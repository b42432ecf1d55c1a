"""What the kernels of sampling accept: one set of checks for a definition and its twin."""

import math

import numpy as np

from rml._kernels.checks import Array, array
from rml.errors import ArgumentError


def largest(values: Array, ids: Array, out: Array) -> None:
    """Check the arguments of `largest`."""
    array("values", values, (None,))
    array("ids", ids, (None,), np.int64, writable=True)
    array("out", out, ids.shape, writable=True)
    if not 1 <= len(ids) <= len(values) < 2**32:
        raise ArgumentError(
            f"{len(ids)} of {len(values)} values are asked for; at least one and at most all can be"
        )


def log_sum_exp(values: Array, out: Array) -> None:
    """Check the arguments of `log_sum_exp`."""
    array("values", values, (None,))
    array("out", out, (2,), np.float64, writable=True)
    if not len(values):
        raise ArgumentError("there are no values; at least one is needed")


def choose(
    logits: Array, out: Array, temperature: float, top_p: float, min_p: float, chance: float
) -> None:
    """Check the arguments of `choose`, except for the order of the logits."""
    array("logits", logits, (None,))
    array("out", out, (1,), np.int64, writable=True)
    if not len(logits):
        raise ArgumentError("there are no logits; at least one is needed")
    if not (temperature > 0 and 0 <= top_p <= 1 and 0 <= min_p <= 1 and 0 <= chance < 1):
        raise ArgumentError(
            f"temperature={temperature}, top_p={top_p}, min_p={min_p}, chance={chance}: "
            "a number is out of its range"
        )


def penalize(
    ids: Array, counts: Array, logits: Array, repeat: float, presence: float, frequency: float
) -> None:
    """Check the arguments of `penalize`."""
    array("ids", ids, (None,), np.int64)
    array("counts", counts, ids.shape)
    array("logits", logits, (None,), writable=True)
    if not (repeat > 0 and math.isfinite(presence) and math.isfinite(frequency)):
        raise ArgumentError(
            f"repeat={repeat}, presence={presence}, frequency={frequency}: "
            "a number is out of its range"
        )
