"""Rotary keys of a ``config.json``, in the spellings of versions 4 and 5 of Transformers.

Version 4 has ``rope_theta``, ``rope_local_base_freq`` (the base of layers with a window) and
``rope_scaling``; version 5 has ``rope_parameters``, with the base in it, which may hold one object
for each kind of layer. Files that went through several tools have both. Where two places speak of
the same thing they must agree; what is null, empty or left out is not said.

Source: modeling_rope_utils.py and configuration_*.py of Transformers.
"""

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from rml.files.strict_json import brief
from rml.llm.config_keys import Keys
from rml.llm.rope import RopeScaling

__all__ = ["rope_fields"]

_SPELLINGS = ("rope_parameters", "rope_scaling")
_FULL, _SLIDING = "full_attention", "sliding_attention"
_ORIGINAL = "original_max_position_embeddings"
# Keys of a set that are not about its scaling.
_BESIDE = ("rope_theta", "partial_rotary_factor", _SLIDING)


def rope_fields(keys: Keys, theta: float, n_ctx: int, *, two_sets: bool) -> dict[str, Any]:
    """Fields of a `ModelConfig`.

    Parameters
    ----------
    keys : Keys
        The whole file.
    theta : float
        The family's base.
    n_ctx : int
        Context of training.
    two_sets : bool
        Whether layers with a window have a base of their own.
    """
    if keys.number("partial_rotary_factor", 1.0) != 1.0:
        raise keys.refuse("partial_rotary_factor is not implemented")
    far, near = [], []
    for spelling in _SPELLINGS:
        whole = keys.child(spelling)
        near.append(whole.child(_SLIDING))
        far.append(whole.child(_FULL) if _FULL in whole else whole)
        if far[-1] is not whole:
            whole.refuse_all(dict(whole.unread()))
    far_theta = _agreed([(each, "rope_theta") for each in (keys, *far)])
    far_scaling = _scaling(keys, far, n_ctx)
    found: dict[str, Any] = {
        "rope_theta": theta if far_theta is None else far_theta,
        "rope_scaling": far_scaling,
    }
    near_names = [(each, "rope_theta") for each in near]
    if two_sets:
        near_names.append((keys, "rope_local_base_freq"))
    near_theta = _agreed(near_names)
    near_scaling = _scaling(keys, near, n_ctx)
    if two_sets:
        found["rope_local_theta"] = 10_000.0 if near_theta is None else near_theta
        if near_scaling is not None:
            raise keys.refuse("rope scaling of layers with a window is not implemented")
    elif any(len(each) for each in near) and (
        (near_theta if near_theta is not None else theta) != found["rope_theta"]
        or near_scaling != far_scaling
    ):
        raise keys.refuse("a second set of rotary parameters is not implemented for this family")
    return found


def _agreed(places: Sequence[tuple[Keys, str]]) -> float | None:
    """Return the number that one or several keys hold; None if none does."""
    found = [
        (keys.full_name(key), value)
        for keys, key in places
        if (value := keys.optional_number(key)) is not None
    ]
    for name, value in found[1:]:
        if value != found[0][1]:
            raise _contradiction(places[0][0], *found[0], name, value)
    return found[0][1] if found else None


def _scaling(keys: Keys, places: Sequence[Keys], n_ctx: int) -> RopeScaling | None:
    """Scaling of one kind of layer, which several places may tell."""
    telling = [place for place in places if place.says_more_than(_BESIDE)]
    kinds = [(place.full_name("rope_type"), _kind(place)) for place in telling]
    for name, kind in kinds[1:]:
        if kind != kinds[0][1]:
            raise _contradiction(keys, *kinds[0], name, kind)
    read = [
        _read(keys, place, kind, n_ctx) for place, (_, kind) in zip(telling, kinds, strict=True)
    ]
    for place in places:  # what is beside the scaling counts also where there is none
        if place.number("partial_rotary_factor", 1.0) != 1.0:
            raise keys.refuse("partial_rotary_factor is not implemented")
    for place, scaling in zip(telling[1:], read[1:], strict=True):
        for field in fields(RopeScaling):
            one, two = (getattr(each, field.name, None) for each in (read[0], scaling))
            if one != two:
                key = _ORIGINAL if field.name == "original_context" else field.name
                names = telling[0].full_name(key), place.full_name(key)
                raise _contradiction(keys, names[0], one, names[1], two)
    return read[0] if read else None


def _kind(place: Keys) -> object:
    kind, legacy = place.get("rope_type"), place.get("type")
    if kind and legacy and kind != legacy:
        raise place.fail(f"rope_type is {brief(kind)}, but type is {brief(legacy)}")
    return kind or legacy or "default"


def _read(keys: Keys, place: Keys, kind: object, n_ctx: int) -> RopeScaling | None:
    """One set of rotary parameters; the original context is that of training if not said."""
    scaling = None
    if kind == "linear":
        scaling = RopeScaling(type="linear", factor=place.number("factor"))
    elif kind == "dynamic":
        scaling = RopeScaling(type="dynamic", factor=place.number("factor"), original_context=n_ctx)
    elif kind == "llama3":
        scaling = RopeScaling(
            type="llama3",
            factor=place.number("factor"),
            original_context=_original(keys, place, n_ctx),
            low_freq_factor=place.number("low_freq_factor"),
            high_freq_factor=place.number("high_freq_factor"),
        )
    elif kind == "yarn":
        original = _original(keys, place, n_ctx)
        scaling = RopeScaling(
            type="yarn",
            factor=place.number("factor", n_ctx / original if original > 0 else None),
            original_context=original,
            beta_fast=place.number("beta_fast", 32.0),
            beta_slow=place.number("beta_slow", 1.0),
            truncate=place.flag("truncate", default=True),
            attention_factor=place.optional_number("attention_factor"),
            mscale=place.optional_number("mscale"),
            mscale_all_dim=place.optional_number("mscale_all_dim"),
        )
    elif kind != "default":
        raise keys.refuse(f"rope type {brief(kind)} is not implemented")
    passed_over = ("finetuned", _ORIGINAL, *_BESIDE)
    place.refuse_all({k: v for k, v in place.unread() if v is not None and k not in passed_over})
    return scaling


def _original(keys: Keys, place: Keys, n_ctx: int) -> int:
    """Positions before the stretching, said in the set or beside it."""
    inside, beside = (each.integer(_ORIGINAL, 0) or None for each in (place, keys))
    if None not in (inside, beside) and inside != beside:
        raise _contradiction(keys, _ORIGINAL, beside, place.full_name(_ORIGINAL), inside)
    return inside or beside or n_ctx


def _contradiction(keys: Keys, one: str, value: object, two: str, other: object) -> Exception:
    places = " and ".join(name.partition(".")[0] for name in (one, two))
    return keys.fail(
        f"{places} contradict each other: {one} is {brief(value)}, but {two} is {brief(other)}"
    )
