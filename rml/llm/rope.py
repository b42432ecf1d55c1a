"""Rotary position embedding: how fast each pair of a head's dimensions turns.

`Rope` is the table of one kind of layer: pair ``i`` of ``head_dim / 2`` turns by
``position * inv_freq[i]`` radians, so that the product of a query and a key depends only on the
distance between them (Su et al., "RoFormer", arXiv:2104.09864). Unscaled, ``inv_freq[i] =
theta ** (-2 i / head_dim)``. A `RopeScaling` slows the slow pairs down, so that a model trained on
a short context reads positions beyond it.

Frequencies are float64: at position 100,000 a float32 angle is off by up to 0.004 radians. The
angles themselves, and which two dimensions make a pair, are the kernels' (`rml._kernels.rope_py`).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from rml._kernels.ieee import ieee

__all__ = ["Rope", "RopeScaling", "ScalingType"]

ScalingType = Literal["linear", "dynamic", "llama3", "yarn", "divisors"]
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeScaling:
    """How the frequencies of a rotary embedding are stretched; unset fields are not used.

    Attributes
    ----------
    type : str
        ``"linear"``, ``"dynamic"``, ``"llama3"``, ``"yarn"`` or ``"divisors"``.
    factor : float
        By how much the context grows.
    original_context : int
        Positions the model was trained on before it was stretched.
    low_freq_factor, high_freq_factor : float
        llama3: pairs slower than ``low_freq_factor`` turns in the original context are slowed by
        `factor`, pairs faster than ``high_freq_factor`` turns are kept.
    beta_fast, beta_slow : float
        yarn: the same two limits, in turns, between which a linear ramp blends.
    truncate : bool
        yarn: round the ends of the ramp outward to whole pairs.
    attention_factor : float or None
        yarn: what cos and sin are multiplied with; computed from the other fields if None.
    mscale, mscale_all_dim : float or None
        yarn: weights of the logarithm in the computed attention factor.
    divisors : tuple of float
        divisors: one for each pair (the GGUF tensor ``rope_freqs.weight``).
    """

    type: ScalingType
    factor: float = 1.0
    original_context: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    attention_factor: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    divisors: tuple[float, ...] = ()

    def problems(self, head_dim: int, theta: float) -> list[str]:
        """Say what is wrong with the numbers, for heads of `head_dim` dimensions and a base."""
        found = []
        for name in ("factor", "low_freq_factor", "high_freq_factor", "beta_fast", "beta_slow"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                found.append(f"rope scaling {name} is {value}, but must be positive")
        if self.attention_factor is not None and not (
            math.isfinite(self.attention_factor) and self.attention_factor > 0
        ):
            found.append(f"rope attention_factor is {self.attention_factor}, but must be positive")
        for name in ("mscale", "mscale_all_dim"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value >= 0):
                found.append(f"rope scaling {name} is {value}, but must not be negative")
        if self.type in ("dynamic", "llama3", "yarn") and self.original_context <= 0:
            found.append(
                f"rope scaling {self.type!r} needs the original context, but it is "
                f"{self.original_context}"
            )
        if self.type == "llama3" and self.high_freq_factor <= self.low_freq_factor:
            found.append(
                f"rope high_freq_factor {self.high_freq_factor} is not above low_freq_factor "
                f"{self.low_freq_factor}"
            )
        if self.type == "dynamic" and head_dim == 2:
            found.append("rope scaling 'dynamic' needs a head_dim above 2")
        if self.type == "divisors":
            if len(self.divisors) != head_dim // 2:
                found.append(
                    f"rope has {len(self.divisors)} frequency divisors, but a head of {head_dim} "
                    f"has {head_dim // 2} pairs"
                )
            if not all(math.isfinite(value) and value > 0 for value in self.divisors):
                found.append("rope frequency divisors must be positive")
        if self.type == "yarn" and not found:
            if theta <= 1:
                found.append(f"rope_theta is {theta}, but yarn needs one above 1")
            elif (ramp := _yarn_ramp(head_dim, theta, self))[0] > ramp[1]:
                # Here the engines that models are made with disagree about what is meant.
                found.append(
                    f"yarn's ramp would run from pair {ramp[0]} down to {ramp[1]}: beta_fast "
                    f"{self.beta_fast}, beta_slow {self.beta_slow} and the original context "
                    f"{self.original_context} do not fit together"
                )
        return found


@dataclass(frozen=True, slots=True, eq=False)
class Rope:
    """The rotary table of one kind of layer.

    Attributes
    ----------
    inv_freq : ndarray of float64, shape (head_dim / 2,)
        Radians per position of each pair; read-only.
    attention_factor : float
        What cos and sin are multiplied with (1 but for yarn).
    """

    inv_freq: Floats
    attention_factor: float = 1.0

    @classmethod
    @ieee
    def create(
        cls,
        head_dim: int,
        theta: float,
        scaling: RopeScaling | None = None,
        *,
        n_ctx: int | None = None,
    ) -> "Rope":
        """Compute the table.

        Parameters
        ----------
        head_dim : int
            Dimensions of a head, even.
        theta : float
            Base of the geometric series of frequencies.
        scaling : RopeScaling or None
            How it is stretched; sound, see `RopeScaling.problems`.
        n_ctx : int or None
            Context of the session, for ``"dynamic"`` alone; None is the original context.
        """
        if scaling is None:
            rope = cls(_plain(head_dim, theta))
        else:
            rope = _SCALED[scaling.type](head_dim, theta, scaling, n_ctx)
        rope.inv_freq.flags.writeable = False
        return rope


def _plain(head_dim: int, theta: float) -> Floats:
    """Frequencies without scaling, shape (head_dim / 2,); Su et al., section 3.2.2."""
    exponents = np.arange(0, head_dim, 2, dtype=np.float64) / head_dim
    return theta**-exponents


def _linear(head_dim: int, theta: float, scaling: RopeScaling, n_ctx: int | None) -> Rope:
    """Position interpolation (Chen et al., arXiv:2306.15595): every pair is slowed alike."""
    del n_ctx
    return Rope(_plain(head_dim, theta) / scaling.factor)


def _dynamic(head_dim: int, theta: float, scaling: RopeScaling, n_ctx: int | None) -> Rope:
    """Dynamic NTK scaling, by Transformers' `dynamic` (modeling_rope_utils).

    There the base grows with the length of the sequence, so that a result depends on how a prompt
    is cut into pieces. Here the length is that of the session's context, fixed when it opens.
    """
    length = max(n_ctx or 0, scaling.original_context)
    growth = scaling.factor * length / scaling.original_context - (scaling.factor - 1)
    return Rope(_plain(head_dim, theta * growth ** (head_dim / (head_dim - 2))))


def _llama3(head_dim: int, theta: float, scaling: RopeScaling, n_ctx: int | None) -> Rope:
    """Llama 3.1's scaling by wavelength (`apply_scaling` in Meta's model code).

    A pair that makes t turns in the original context keeps its frequency if t is above
    high_freq_factor, gets it divided by `factor` if t is below low_freq_factor, and a blend of the
    two, linear in t, between.
    """
    del n_ctx
    inv_freq = _plain(head_dim, theta)
    turns = scaling.original_context * inv_freq / (2 * math.pi)
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    kept = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return Rope(kept * inv_freq + (1 - kept) * inv_freq / scaling.factor)


def _yarn(head_dim: int, theta: float, scaling: RopeScaling, n_ctx: int | None) -> Rope:
    """YaRN (Peng et al., arXiv:2309.00071), in the form of Transformers' `yarn`.

    As llama3, but the blend is linear in the pair's number, and cos and sin grow by an attention
    factor.
    """
    del n_ctx
    inv_freq = _plain(head_dim, theta)
    low, high = _yarn_ramp(head_dim, theta, scaling)
    if low == high:
        high += 0.001  # a step instead of a ramp; the peers' way around a division by zero
    slowed = np.clip((np.arange(head_dim // 2) - low) / (high - low), 0.0, 1.0)
    blended = (1 - slowed) * inv_freq + slowed * inv_freq / scaling.factor
    return Rope(blended, _yarn_attention_factor(scaling))


def _yarn_ramp(head_dim: int, theta: float, scaling: RopeScaling) -> tuple[float, float]:
    """Find the ends of the ramp: the last pair that is kept, the first that is slowed entirely."""

    def pair_with_turns(turns: float) -> float:
        # Not whole: which i solves original_context * theta ** (-2 i / head_dim) = 2 pi turns.
        ratio = scaling.original_context / (turns * 2 * math.pi)
        return head_dim * math.log(ratio) / (2 * math.log(theta))

    low, high = pair_with_turns(scaling.beta_fast), pair_with_turns(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    return max(low, 0), min(high, head_dim - 1)


def _yarn_attention_factor(scaling: RopeScaling) -> float:
    """Return 0.1 ln(factor) + 1 (YaRN, equation 22), or what the checkpoint says instead."""
    if scaling.attention_factor is not None:
        return scaling.attention_factor

    def mscale(weight: float) -> float:
        return 1.0 if scaling.factor <= 1 else 0.1 * weight * math.log(scaling.factor) + 1.0

    if scaling.mscale and scaling.mscale_all_dim:
        return mscale(scaling.mscale) / mscale(scaling.mscale_all_dim)
    return mscale(1.0)


def _divided(head_dim: int, theta: float, scaling: RopeScaling, n_ctx: int | None) -> Rope:
    """Frequencies divided one by one: how a GGUF file stores Llama 3.1's scaling."""
    del n_ctx
    return Rope(_plain(head_dim, theta) / np.array(scaling.divisors, dtype=np.float64))


_SCALED: dict[ScalingType, Callable[[int, float, RopeScaling, int | None], Rope]] = {
    "linear": _linear,
    "dynamic": _dynamic,
    "llama3": _llama3,
    "yarn": _yarn,
    "divisors": _divided,
}
