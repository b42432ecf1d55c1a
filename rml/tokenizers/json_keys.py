"""Every part, kind and key of the tokenizer.json format that rml knows, and what it holds.

What is not in this table and could change ids or text is refused by name: a part that no one reads
is a difference that no one sees. A key that rml does not know passes if its value says "nothing"
(null, false, empty).

Source: the serialization of Hugging Face tokenizers.
"""

from collections.abc import Mapping
from typing import Any, Final

from rml.errors import TokenizerError

__all__ = ["KEYS", "check_keys"]

_FLAG: Final = (bool,)
_MAYBE_FLAG: Final = (bool, type(None))
_TEXT: Final = (str,)
_MAYBE_TEXT: Final = (str, type(None))
_COUNT: Final = (int,)
_LIST: Final = (list,)
# Checked where it is read.
_ANY: Final = (object,)
# Changes neither ids nor text: offsets, the second of two texts, settings of a call.
_HARMLESS: Final = (object,)

_BYTE_LEVEL: Final = {
    "add_prefix_space": _FLAG,
    "trim_offsets": _HARMLESS,
    "use_regex": _FLAG,
}
_METASPACE: Final = {
    "replacement": _TEXT,
    "str_rep": _HARMLESS,
    "prepend_scheme": _MAYBE_TEXT,
    "add_prefix_space": _MAYBE_FLAG,
    "split": _FLAG,
}
_REPLACE: Final = {"pattern": _ANY, "content": _TEXT}
_ENDS: Final = {"sep": _LIST, "cls": _LIST}

# Part -> kind -> key -> types of its value. A kind that is missing is refused.
KEYS: Final[Mapping[str, Mapping[str, Mapping[str, tuple[type, ...]]]]] = {
    "document": {
        "tokenizer.json": {
            "version": _HARMLESS,
            "truncation": _HARMLESS,
            "padding": _HARMLESS,
            "added_tokens": _ANY,
            "normalizer": _ANY,
            "pre_tokenizer": _ANY,
            "post_processor": _ANY,
            "decoder": _ANY,
            "model": _ANY,
        },
    },
    "added token": {
        "AddedToken": {
            "id": _ANY,
            "content": _ANY,
            "single_word": _FLAG,
            "lstrip": _FLAG,
            "rstrip": _FLAG,
            "normalized": _FLAG,
            "special": _FLAG,
        },
    },
    "model": {
        "BPE": {
            "dropout": _ANY,
            "unk_token": _MAYBE_TEXT,
            "continuing_subword_prefix": _MAYBE_TEXT,
            "end_of_word_suffix": _MAYBE_TEXT,
            "fuse_unk": _MAYBE_FLAG,
            "byte_fallback": _MAYBE_FLAG,
            "ignore_merges": _MAYBE_FLAG,
            "vocab": _ANY,
            "merges": _ANY,
        },
    },
    "normalizer": {
        "Sequence": {"normalizers": _ANY},
        "NFC": {},
        "NFD": {},
        "NFKC": {},
        "NFKD": {},
        "Lowercase": {},
        "Strip": {"strip_left": _FLAG, "strip_right": _FLAG},
        "Prepend": {"prepend": _TEXT},
        "Replace": _REPLACE,
    },
    "pre_tokenizer": {
        "Sequence": {"pretokenizers": _ANY},
        "ByteLevel": _BYTE_LEVEL,
        "Split": {"pattern": _ANY, "behavior": _TEXT, "invert": _FLAG},
        "Digits": {"individual_digits": _FLAG},
        "Punctuation": {"behavior": _TEXT},
        "Whitespace": {},
        "WhitespaceSplit": {},
        "Metaspace": _METASPACE,
    },
    "post_processor": {
        "Sequence": {"processors": _LIST},
        "ByteLevel": _BYTE_LEVEL,
        "TemplateProcessing": {"single": _LIST, "pair": _HARMLESS, "special_tokens": _ANY},
        "BertProcessing": _ENDS,
        "RobertaProcessing": _ENDS | {"trim_offsets": _HARMLESS, "add_prefix_space": _HARMLESS},
    },
    "decoder": {
        "Sequence": {"decoders": _ANY},
        "ByteLevel": _BYTE_LEVEL,
        "ByteFallback": {},
        "Fuse": {},
        "Metaspace": _METASPACE,
        "Replace": _REPLACE,
        "Strip": {"content": _TEXT, "start": _COUNT, "stop": _COUNT},
        "WordPiece": {"prefix": _TEXT, "cleanup": _FLAG},
    },
}


def check_keys(part: str, kind: str, spec: Mapping[str, Any], where: str) -> None:
    """Refuse a kind that is not implemented, a key that nobody reads, a value of another type.

    Parameters
    ----------
    part : str
        A key of `KEYS`.
    kind : str
        Which of its kinds `spec` is.
    spec : mapping
        The object of the document.
    where : str
        Names the file in messages.

    Raises
    ------
    TokenizerError
        What is wrong.
    """
    known = KEYS[part].get(kind)
    if known is None:
        changed = "text" if part == "decoder" else "ids"
        raise TokenizerError(
            f"{where}: the {part} {kind!r} is not implemented, and it changes {changed}; rml reads "
            f"{', '.join(KEYS[part])}"
        )
    for key, value in spec.items():
        if key == "type":
            continue
        types = known.get(key)
        if types is None:
            if value not in (None, False, "", [], {}):
                raise TokenizerError(
                    f"{where}: the {part} {kind} has a key {key!r} that rml does not know; its "
                    f"value {value!r:.60} may change what the tokenizer does"
                )
        elif not isinstance(value, types) or (isinstance(value, bool) and types is _COUNT):
            raise TokenizerError(
                f"{where}: {key} of the {part} {kind} is {value!r:.60}, expected is "
                f"{' or '.join(_NAMES[each] for each in types)}"
            )


_NAMES: Final[Mapping[type, str]] = {
    bool: "true or false",
    str: "a text",
    int: "a whole number",
    list: "a list",
    type(None): "null",
}
