"""The ends of a text and of a generation, as a tokenizer.json and the files beside it name them.

Source: ``tokenization_utils_fast.py`` of Transformers for the files beside it, and the
``post_processor`` of Hugging Face tokenizers.
"""

import logging
import reprlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from rml.errors import CheckpointError, TokenizerError
from rml.tokenizers.end_tokens import EndTokens, collect_ends, hidden_ends, named_ends
from rml.tokenizers.json_keys import check_keys
from rml.tokenizers.special_tokens import SpecialToken

__all__ = ["Beside", "Ends", "read_ends"]

_log = logging.getLogger("rml")
_CONFIG: Final = "config.json"
_GENERATION: Final = "generation_config.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """The files beside a tokenizer.json, each empty if it is missing."""

    tokenizer_config: Mapping[str, Any]
    special_tokens_map: Mapping[str, Any]
    generation_config: Mapping[str, Any]
    config: Mapping[str, Any]
    templates: Mapping[str, str]
    processor_template: Mapping[str, Any] = field(default_factory=dict)  # chat_template.json


@dataclass(frozen=True, slots=True, kw_only=True)
class Ends:
    """What stands at the ends.

    Attributes
    ----------
    bos_id, eos_id : int or None
        Beginning and end of text.
    before, after : tuple of int
        What encoding puts before and after a text.
    tokens : mapping of int to tuple of str
        What ends a generation, and why.
    hidden : list of int
        Those of them that become control tokens, though the files do not say so.
    """

    bos_id: int | None
    eos_id: int | None
    before: tuple[int, ...]
    after: tuple[int, ...]
    tokens: EndTokens
    hidden: list[int]


def read_ends(
    document: Mapping[str, Any],
    beside: Beside,
    tokens: Sequence[str],
    specials: Sequence[SpecialToken],
    merges: tuple[Sequence[str], Sequence[str]],
    where: str,
) -> Ends:
    """Find the tokens at the ends of a text, and those that end a generation.

    Parameters
    ----------
    document : mapping
        The tokenizer.json.
    beside : Beside
        The files beside it.
    tokens : sequence of str
        Texts by id.
    specials : sequence of SpecialToken
        Added tokens.
    merges : pair of sequences of str
        Left and right parts.
    where : str
        Names the file in messages.

    Raises
    ------
    CheckpointError
        An id of an end is none.
    TokenizerError
        The post-processor is not implemented.
    """
    ids = {text: i for i, text in enumerate(tokens) if text}
    ids.update({token.text: token.id for token in specials})
    before, after = _template_ids(document.get("post_processor"), where)
    for i in (*before, *after):
        if type(i) is not int or not 0 <= i < len(tokens):
            raise TokenizerError(
                f"{where}: the post_processor adds {reprlib.repr(i)} to a text, but ids of tokens "
                f"are whole numbers from 0 to {len(tokens) - 1}"
            )
    bos, _ = _named_id("bos", beside, ids, before[:1], where)
    eos, why = _named_id("eos", beside, ids, after[-1:], where)
    config = beside.tokenizer_config
    if bos is not None and (add := config.get("add_bos_token")) is not None:
        before = ([bos] if add else []) + [i for i in before if i != bos]
    if eos is not None and (add := config.get("add_eos_token")) is not None:
        after = [i for i in after if i != eos] + ([eos] if add else [])
    keyed = [*([] if eos is None else [(eos, why)]), *_ids_of_configs(beside, where)]
    control = {token.id for token in specials if token.control}
    found = {token.id for token in specials}
    named = named_ends(tokens, control, merges)
    return Ends(
        bos_id=bos,
        eos_id=eos,
        before=tuple(before),
        after=tuple(after),
        tokens=collect_ends([*keyed, *((i, "its name") for i in named)]),
        hidden=hidden_ends(
            [*named, *(i for i, _ in keyed if i < len(tokens))],
            tokens,
            control=control,
            whole={*found, *named},
            merges=merges,
        ),
    )


def _ids_of_configs(beside: Beside, where: str) -> Iterator[tuple[int, str]]:
    """Ids that end a generation, and where they stand."""
    for source, file, key in (
        (beside.generation_config, _GENERATION, ""),
        (beside.config, _CONFIG, ""),
        (beside.config.get("text_config") or {}, _CONFIG, "text_config."),
    ):
        for token in _checked_ids(source.get("eos_token_id"), f"{where}: {file}", key):
            yield token, f"{file}: {key}eos_token_id"


def _checked_ids(value: object, where: str, key: str = "") -> list[int]:
    ids: list[Any] = value if isinstance(value, list) else [] if value is None else [value]
    if any(isinstance(i, bool) or not isinstance(i, int) or i < 0 for i in ids):
        raise CheckpointError(
            f"{where}: {key}eos_token_id={value!r} must be token ids: integers, at least 0"
        )
    return ids


def _named_id(
    name: str,
    beside: Beside,
    ids: Mapping[str, int],
    from_template: Sequence[int],
    where: str,
) -> tuple[int | None, str]:
    """Find the id of a named token in the first file that says anything about it, and that file."""
    for source, file in (
        (beside.tokenizer_config, "tokenizer_config.json"),
        (beside.special_tokens_map, "special_tokens_map.json"),
    ):
        if f"{name}_token" in source:
            token = source[f"{name}_token"]
            text = token.get("content") if isinstance(token, Mapping) else token
            if text is not None and text not in ids:
                _log.warning("%s: %s names %s_token %r, which is no token", where, file, name, text)
            return None if text is None else ids.get(text), f"{file}: {name}_token"
    n_tokens = 1 + max(ids.values(), default=-1)
    for source, file in ((beside.generation_config, _GENERATION), (beside.config, _CONFIG)):
        named = source.get(f"{name}_token_id")
        if isinstance(named, list):
            named = named[0] if named else None
        if isinstance(named, int) and not isinstance(named, bool):
            if not 0 <= named < n_tokens:
                _log.warning(
                    "%s: %s gives %s_token_id %d, but there are %d tokens; it is left out",
                    where, file, name, named, n_tokens,
                )  # fmt: skip
                return None, ""
            return named, f"{file}: {name}_token_id"
    return (from_template[0] if from_template else None), "post_processor"


def _template_ids(spec: Mapping[str, Any] | None, where: str) -> tuple[list[int], list[int]]:
    """Find the ids that the post-processor puts before and after a single text."""
    before: list[int] = []
    after: list[int] = []
    if spec is None:
        return before, after
    kind = spec["type"]
    check_keys("post_processor", kind, spec, where)
    if kind == "Sequence":
        for part in spec["processors"]:
            first, last = _template_ids(part, where)
            before, after = first + before, after + last
    elif kind == "TemplateProcessing":
        seen = False
        for piece in spec["single"]:
            if "Sequence" in piece:
                if seen or piece["Sequence"]["id"] != "A":
                    raise TokenizerError(f"{where}: the post_processor does not hold one text once")
                seen = True
                continue
            added = spec["special_tokens"][piece["SpecialToken"]["id"]]["ids"]
            (after if seen else before).extend(added)
    elif kind in ("BertProcessing", "RobertaProcessing"):
        before, after = [spec["cls"][1]], [spec["sep"][1]]
    return before, after  # a ByteLevel only moves offsets
