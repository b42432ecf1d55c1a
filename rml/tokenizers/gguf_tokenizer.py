"""The tokenizer of a GGUF file.

Source: the keys ``tokenizer.*`` of the GGUF documentation. The architecture plays no part.
"""

import hashlib
import logging
from collections.abc import Mapping
from operator import methodcaller
from reprlib import repr as brief  # of values from strangers: bounded in depth and length
from typing import Any, Final

from rml.errors import TokenizerError
from rml.tokenizers.bpe import ByteLevelBPE
from rml.tokenizers.end_tokens import (
    EndTokens,
    collect_ends,
    hidden_ends,
    named_ends,
    spared_ends,
)
from rml.tokenizers.pretokenize import SPLITTERS, Splitter, splitter
from rml.tokenizers.sentencepiece import SentencePiece, byte_tokens
from rml.tokenizers.special_tokens import SpecialToken
from rml.tokenizers.text_model import Parts, TextModel
from rml.tokenizers.vocabulary import TokenType, Vocabulary, metadata_flag, string_list

__all__ = ["gguf_parts"]

_log = logging.getLogger("rml")

# Named ids that end a generation (``tokenizer.ggml.eos_token_id`` and so on).
_END_KEYS: Final = ("eos", "eot", "eom", "fim_pad", "fim_rep", "fim_sep")

_UNREAD: Final = {
    "bert": " (WordPiece, of encoder models)",
    "t5": " (unigram)",
    "rwkv": " (RWKV's greedy search)",
    "plamo2": " (PLaMo-2's own)",
}

# Vocabularies that were once converted without naming their rule: SHA-256 of all merges, a line
# each, and the rule they were trained with.
_KNOWN_MERGES: Final = {
    "04e3597d7996f292ca9b8b7285ca4d58a6ae171ac47d73fc7140ceb0c7a6bbc0": "gpt-2",
    "0a1f07b1d32153dcdf48f57189b0c217a69b11e11a3bee8a053861987e1640e4": "mpt",
    "26a620e10c7991c8451a09d21f8313932eff101916c64a874c738ccd6b88736d": "falcon",
    "8715d8d6d92d1b0c267157f82cff55e0bfd0983ea256b42b7a16fc82873a2b67": "starcoder",
    "aea6ed50becdb3beed814d2fde2dea2e655d1039addf269d74a4708ce2ed4d63": "smollm",
    "bbeef245f0b03a9613753068e5799c2496290005594c68f09eed68feedbe6d1f": "qwen2",
    "cb5bed793622288a0e1b699c5c4edad6ab40c361a3f52d3c645ae3f9806388e3": "deepseek-llm",
}


# Phi-3's control tokens swallow white space to their right. A GGUF file cannot say so; these are
# the tokens by which that vocabulary is known, and the ids that do it: "</s>", and all from
# "<|assistant|>" to "<|user|>".
_PHI3: Final = {
    32000: "<|endoftext|>",
    32001: "<|assistant|>",
    32006: "<|system|>",
    32007: "<|end|>",
    32010: "<|user|>",
}
_PHI3_STRIPPING: Final = frozenset((2, *range(32001, 32011)))


def gguf_parts(metadata: Mapping[str, Any], where: str, pre: str | None) -> Parts:
    """Build what a `Tokenizer` is made of.

    Parameters
    ----------
    metadata : mapping
        GGUF keys and values.
    where : str
        Names the file in messages.
    pre : str or None
        Splitting rule to use instead of the file's own.

    Raises
    ------
    TokenizerError
        The vocabulary is missing or broken, of a kind that is not read, or its rule is unknown.
    """
    kind = metadata.get("tokenizer.ggml.model")
    if kind is not None and not isinstance(kind, str):
        raise TokenizerError(f"{where}: tokenizer.ggml.model is no text, but {brief(kind)}")
    if kind == "gpt2":
        return _byte_level(metadata, where, pre)
    if kind == "llama":
        return _sentencepiece(metadata, where)
    if kind is None:
        raise TokenizerError(f"{where}: no tokenizer.ggml.model; the file has no vocabulary")
    raise TokenizerError(
        f"{where}: tokenizer.ggml.model is {kind!r}{_UNREAD.get(kind, '')}; rml reads 'gpt2' "
        "(byte-level BPE) and 'llama' (SentencePiece with scores)"
    )


def _byte_level(metadata: Mapping[str, Any], where: str, pre: str | None) -> Parts:
    merges = _merges(metadata, where)
    vocabulary, ends = _with_ends(metadata, where, merges)
    rule = _rule(metadata, where, pre)
    reserved = vocabulary.of_type(TokenType.CONTROL, TokenType.UNKNOWN)
    model = ByteLevelBPE(vocabulary.tokens, reserved, merges, rule)
    add_bos = rule.add_bos if vocabulary.add_bos is None else vocabulary.add_bos
    return _parts(metadata, where, vocabulary, model, add_bos, ends)


def _sentencepiece(metadata: Mapping[str, Any], where: str) -> Parts:
    vocabulary, ends = _with_ends(metadata, where, None)
    if vocabulary.scores is None:
        raise TokenizerError(f"{where}: no tokenizer.ggml.scores; a 'llama' vocabulary needs them")
    model = SentencePiece(
        vocabulary.tokens,
        vocabulary.scores,
        vocabulary.of_type(TokenType.CONTROL, TokenType.UNKNOWN, TokenType.BYTE),
        byte_tokens(vocabulary.tokens, vocabulary.of_type(TokenType.BYTE), where),
        vocabulary.ids.get("unknown"),
        prefix=metadata_flag(metadata, "tokenizer.ggml.add_space_prefix", where) is not False,
    )
    return _parts(metadata, where, vocabulary, model, vocabulary.add_bos is not False, ends)


def _parts(
    metadata: Mapping[str, Any],
    where: str,
    vocabulary: Vocabulary,
    model: TextModel,
    add_bos: bool,
    ends: EndTokens,
) -> Parts:
    bos, eos = vocabulary.ids.get("bos"), vocabulary.ids.get("eos")
    return Parts(
        model=model,
        tokens=vocabulary.tokens,
        specials=_specials(vocabulary),
        bos_id=bos,
        eos_id=eos,
        before=(bos,) if add_bos and bos is not None else (),
        after=(eos,) if vocabulary.add_eos and eos is not None else (),
        end_tokens=ends,
        chat_templates=_chat_templates(metadata, where),
    )


def _with_ends(
    metadata: Mapping[str, Any], where: str, merges: tuple[list[str], list[str]] | None
) -> tuple[Vocabulary, EndTokens]:
    """Read the vocabulary, and make control tokens of all that end a generation."""
    vocabulary = Vocabulary.from_gguf(metadata, where)
    tokens = vocabulary.tokens
    control = vocabulary.of_type(TokenType.CONTROL)
    named = named_ends(tokens, control, merges or ((), ()))
    spared = spared_ends(map(tokens.__getitem__, {*named, *vocabulary.ids.values()}))
    keyed = [
        (i, f"tokenizer.ggml.{name}_token_id")
        for name in _END_KEYS
        if (i := vocabulary.ids.get(name)) is not None
        and (name == "eos" or tokens[i] not in spared)
    ]
    hidden = hidden_ends(
        [*named, *(i for i, _ in keyed)],
        tokens,
        control=control,
        whole={*vocabulary.of_type(TokenType.USER_DEFINED), *named},
        merges=merges,
    )
    if hidden:
        _log.info(
            "%s: made control tokens, since they end a generation: %s",
            where,
            ", ".join(f"{i} {tokens[i]!r}" for i in hidden),
        )
    ends = collect_ends([*keyed, *((i, "its name") for i in named)])
    return vocabulary.with_control(hidden), ends


def _rule(metadata: Mapping[str, Any], where: str, pre: str | None) -> Splitter:
    name = pre or metadata.get("tokenizer.ggml.pre")
    if name is None:
        lines = "\n".join(metadata["tokenizer.ggml.merges"])
        name = _KNOWN_MERGES.get(hashlib.sha256(lines.encode("utf-8", "replace")).hexdigest())
    if name is None:
        raise TokenizerError(
            f"{where}: no tokenizer.ggml.pre, the name of the rule that splits text into words, "
            "and the vocabulary is none that rml knows. Convert the model again, or give the rule "
            f"as pre=, one of: {', '.join(sorted(SPLITTERS))}"
        )
    return splitter(str(name))


def _merges(metadata: Mapping[str, Any], where: str) -> tuple[list[str], list[str]]:
    lines = string_list(metadata, "tokenizer.ggml.merges", where)
    if set(map(methodcaller("count", " "), lines)) - {1}:
        odd = next(line for line in lines if line.count(" ") != 1)
        raise TokenizerError(
            f"{where}: tokenizer.ggml.merges holds {odd!r}; expected are two parts and one space"
        )
    parts = " ".join(lines).split(" ") if lines else []  # at once: there are very many
    return parts[0::2], parts[1::2]


def _specials(vocabulary: Vocabulary) -> list[SpecialToken]:
    tokens = vocabulary.tokens
    phi3 = all(i < len(tokens) and tokens[i] == text for i, text in _PHI3.items())
    return [
        SpecialToken(text, i, control=control, rstrip=phi3 and i in _PHI3_STRIPPING)
        for control, kinds in (
            (True, (TokenType.CONTROL, TokenType.UNKNOWN)),
            (False, (TokenType.USER_DEFINED,)),
        )
        for i in vocabulary.of_type(*kinds)
        if (text := tokens[i])
    ]


def _chat_templates(metadata: Mapping[str, Any], where: str) -> dict[str, str]:
    prefix = "tokenizer.chat_template"
    found = {"default": metadata.get(prefix)} | {
        key[len(prefix) + 1 :]: value
        for key, value in metadata.items()
        if key.startswith(prefix + ".")
    }
    for name, source in found.items():
        if source is not None and not isinstance(source, str):
            raise TokenizerError(f"{where}: the chat template {name!r} is not a string")
    return {name: source for name, source in found.items() if source}
