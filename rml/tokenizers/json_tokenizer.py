"""The tokenizer of a Hugging Face folder: tokenizer.json and what stands beside it.

Whatever a tokenizer.json asks for that changes ids is done or refused by name. Truncation and
padding are left out: they are settings of a call, and Transformers resets them too.

Sources: the documentation of Hugging Face tokenizers; ``tokenization_utils_fast.py`` of
Transformers for the files beside it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from rml.errors import TokenizerError
from rml.tokenizers.byte_level import as_bytes, from_visible, to_visible
from rml.tokenizers.char_bpe import CharBPE
from rml.tokenizers.json_stages import (
    Normalizer,
    PreTokenizer,
    read_normalizer,
    read_pre_tokenizer,
)
from rml.tokenizers.sentencepiece import SPACE, WordCutter
from rml.tokenizers.special_tokens import SpecialToken, SpecialTokens
from rml.tokenizers.template_source import named_sources
from rml.tokenizers.text_model import Parts, Prefix
from rml.tokenizers.word_cache import WordCache

__all__ = ["Beside", "json_parts"]

_MAX_TOKENS: Final = 1 << 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """The files beside a tokenizer.json, each empty if it is missing."""

    tokenizer_config: Mapping[str, Any]
    special_tokens_map: Mapping[str, Any]
    generation_config: Mapping[str, Any]
    config: Mapping[str, Any]
    templates: Mapping[str, str]
    processor_template: Mapping[str, Any] = field(default_factory=dict)  # chat_template.json


class JsonModel:
    """The steps of a tokenizer.json between special tokens, as a `TextModel`."""

    def __init__(
        self,
        tokens: Sequence[str],
        bpe: CharBPE,
        normalizer: Normalizer,
        later: Sequence[SpecialToken],
        pre_tokenizer: PreTokenizer,
        byte_values: Mapping[int, int],
        cutter: WordCutter | None,
    ) -> None:
        self.prefix: Prefix = pre_tokenizer.prefix
        if normalizer.prefix != "never":
            self.prefix = normalizer.prefix
        self._tokens = tokens
        self._bpe = bpe
        self._normalizer = normalizer
        self._later = SpecialTokens(later)
        self._pre_tokenizer = pre_tokenizer
        self._byte_values = byte_values
        self._cutter = cutter
        spelled = pre_tokenizer.spell_last
        self._cache = WordCache(self._encode_plain if spelled else bpe.encode_word)

    def encode(self, pieces: Sequence[str | int], *, control: bool) -> list[int]:
        """Ids of a text that was cut at its special tokens of the first kind."""
        ids: list[int] = []
        for n, piece in enumerate(pieces):
            if isinstance(piece, int):
                ids.append(piece)
            else:
                self._encode_piece(ids, piece, n == 0, control)
        return ids

    def _encode_piece(self, ids: list[int], text: str, first: bool, control: bool) -> None:
        """Append the ids of a text; `first` says that nothing stands before it."""
        for piece in self._later.split(self._normalizer(text), control=control):
            if isinstance(piece, int):
                ids.append(piece)
            else:
                words = self._pre_tokenizer(piece, first)
                if self._cutter is not None:
                    words = [part for word in words for part in self._cutter.split(word)]
                ids += self._cache.encode(words)
            first = False

    def token_bytes(self, token_id: int) -> bytes:
        """Bytes that an ordinary token stands for."""
        text = self._tokens[token_id]
        if self._pre_tokenizer.byte_level:
            return from_visible(text)
        byte = self._byte_values.get(token_id)
        return as_bytes(text.replace(SPACE, " ")) if byte is None else bytes([byte])

    def problems(self) -> list[str]:
        """Say what is odd about the vocabulary."""
        return self._bpe.problems(self._pre_tokenizer.byte_level)

    def _encode_plain(self, word: str) -> tuple[int, ...]:
        return self._bpe.encode_word(to_visible(as_bytes(word)))


def json_parts(document: Mapping[str, Any], beside: Beside, where: str) -> Parts:
    """Build what a `Tokenizer` is made of.

    Parameters
    ----------
    document : mapping
        The tokenizer.json.
    beside : Beside
        The files beside it.
    where : str
        Names the file in messages.

    Raises
    ------
    TokenizerError
        Something is broken, or asked for that is not implemented.
    """
    try:
        return _parts(document, beside, where)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        # One net for every missing or mistyped member, instead of a check at each.
        raise TokenizerError(
            f"{where}: not the structure of a tokenizer.json: {type(error).__name__}: {error}"
        ) from error


def _parts(document: Mapping[str, Any], beside: Beside, where: str) -> Parts:
    model = document["model"]
    _check_model(model, where)
    normalizer = read_normalizer(document.get("normalizer"), where)
    pre_tokenizer = read_pre_tokenizer(document.get("pre_tokenizer"), where)
    specials = _added_tokens(document, beside, bool(normalizer.steps), where)
    tokens = _tokens_by_id(model["vocab"], specials, where)
    control = {token.id for token in specials if token.control}
    vocab = {text: i for text, i in model["vocab"].items() if i not in control}
    byte_ids = _byte_ids(model) if model.get("byte_fallback") else None
    for text in map("<0x{:02X}>".format, range(256)) if byte_ids else ():
        vocab.pop(text, None)  # text that looks like a byte token does not become one
    unknown = model.get("unk_token")
    unknown_id = None if unknown is None else model["vocab"].get(unknown)
    bpe = CharBPE(
        vocab,
        len(tokens),
        _merges(model["merges"], where),
        byte_ids=byte_ids,
        unknown_id=unknown_id,
        fuse_unknown=bool(model.get("fuse_unk")),
        ignore_merges=bool(model.get("ignore_merges")),
    )
    # Cutting at spaces only makes it faster; it must not keep apart what is taken whole, or what
    # would meet where a character without a token leaves no trace.
    leaves_trace = len(byte_ids or ()) == 256 or (unknown_id is not None and not bpe.fuse_unknown)
    cuts = leaves_trace and not (pre_tokenizer.byte_level or bpe.ignore_merges)
    cutter = WordCutter(vocab) if cuts else None
    text_model = JsonModel(
        tokens,
        bpe,
        normalizer,
        [
            replace(token, text=normalizer(token.text))
            for token in specials
            if token.normalized and normalizer(token.text)
        ],
        pre_tokenizer,
        {i: byte for byte, i in (byte_ids or {}).items()},
        cutter,
    )
    return _with_ends(document, beside, text_model, tokens, specials, where)


def _check_model(model: Mapping[str, Any], where: str) -> None:
    kind = model.get("type", "BPE" if "merges" in model else None)
    if kind != "BPE":
        raise TokenizerError(f"{where}: the model {kind!r} is not implemented; rml reads BPE")
    for key in ("continuing_subword_prefix", "end_of_word_suffix", "dropout"):
        if model.get(key):
            raise TokenizerError(f"{where}: the model's {key} {model[key]!r} is not implemented")


def _merges(merges: object, where: str) -> tuple[list[str], list[str]]:
    """Read left and right parts from either spelling: "a b", or ["a", "b"]."""
    if not isinstance(merges, list):
        raise TokenizerError(f"{where}: the model has no list of merges")
    pairs = [
        tuple(merge.split(" ")) if isinstance(merge, str) else tuple(merge) for merge in merges
    ]
    if set(map(len, pairs)) - {2}:
        odd = next(merge for merge, pair in zip(merges, pairs, strict=True) if len(pair) != 2)
        raise TokenizerError(f"{where}: the merge {odd!r} is not a pair")
    # Of two equal pairs the last one counts, with its rank.
    last = dict(zip(pairs, range(len(pairs)), strict=True))
    if len(last) < len(pairs):
        pairs = [pair for n, pair in enumerate(pairs) if last[pair] == n]
    return [left for left, _ in pairs], [right for _, right in pairs]


def _byte_ids(model: Mapping[str, Any]) -> dict[int, int]:
    names = ((byte, model["vocab"].get(f"<0x{byte:02X}>")) for byte in range(256))
    return {byte: i for byte, i in names if i is not None}


def _added_tokens(
    document: Mapping[str, Any], beside: Beside, normalizing: bool, where: str
) -> list[SpecialToken]:
    """Read special tokens by id; what tokenizer_config.json says of one counts more."""
    found = {token["id"]: token for token in document.get("added_tokens") or ()}
    for key, token in (beside.tokenizer_config.get("added_tokens_decoder") or {}).items():
        found[int(key)] = token
    specials = []
    for i, token in sorted(found.items()):
        text = token["content"]
        if not isinstance(i, int) or not isinstance(text, str):
            raise TokenizerError(f"{where}: the added token {token!r} has no id or no content")
        if text:
            specials.append(
                SpecialToken(
                    text,
                    i,
                    control=bool(token.get("special")),
                    lstrip=bool(token.get("lstrip")),
                    rstrip=bool(token.get("rstrip")),
                    single_word=bool(token.get("single_word")),
                    # Without a normalizer the search for control tokens may as well be in the raw
                    # text, where it is known which of it a template wrote.
                    normalized=bool(token.get("normalized"))
                    and (normalizing or not token.get("special")),
                )
            )
    return specials


def _tokens_by_id(
    vocab: Mapping[str, int], specials: Iterable[SpecialToken], where: str
) -> list[str]:
    ids = vocab.values()
    if set(map(type, ids)) - {int} or min(ids, default=0) < 0:
        raise TokenizerError(
            f"{where}: the vocabulary has ids that are not whole numbers from 0 on"
        )
    last = max([*ids, *(token.id for token in specials)], default=-1)
    if not 0 <= last < _MAX_TOKENS:
        raise TokenizerError(f"{where}: the largest token id is {last}")
    tokens = [""] * (last + 1)
    for text, i in vocab.items():
        tokens[i] = text
    for token in specials:
        tokens[token.id] = token.text
    return tokens


def _with_ends(
    document: Mapping[str, Any],
    beside: Beside,
    model: JsonModel,
    tokens: list[str],
    specials: list[SpecialToken],
    where: str,
) -> Parts:
    """Add what stands at the ends of a text: beginning, end, and ends of a generation."""
    ids = {text: i for i, text in enumerate(tokens) if text}
    ids.update({token.text: token.id for token in specials})
    config = beside.tokenizer_config
    before, after = _template_ids(document.get("post_processor"), where)
    bos = _named_id("bos", beside, ids, before[:1])
    eos = _named_id("eos", beside, ids, after[-1:])
    if bos is not None and (add := config.get("add_bos_token")) is not None:
        before = ([bos] if add else []) + [i for i in before if i != bos]
    if eos is not None and (add := config.get("add_eos_token")) is not None:
        after = [i for i in after if i != eos] + ([eos] if add else [])
    stops: set[Any] = {eos}
    for source in (beside.config, beside.config.get("text_config") or {}, beside.generation_config):
        named = source.get("eos_token_id")
        stops.update(named if isinstance(named, list) else [named])
    return Parts(
        model=model,
        tokens=tokens,
        specials=specials,
        bos_id=bos,
        eos_id=eos,
        before=tuple(before),
        after=tuple(after),
        stop_ids=frozenset(i for i in stops if isinstance(i, int)),
        chat_templates={
            **named_sources(beside.processor_template.get("chat_template"), where),
            **named_sources(beside.tokenizer_config.get("chat_template"), where),
            **beside.templates,
        },
    )


def _named_id(
    name: str, beside: Beside, ids: Mapping[str, int], from_template: Sequence[int]
) -> int | None:
    """Find the id of a named token, in the first file that says anything about it."""
    for source in (beside.tokenizer_config, beside.special_tokens_map):
        if f"{name}_token" in source:
            token = source[f"{name}_token"]
            text = token.get("content") if isinstance(token, Mapping) else token
            return None if text is None else ids.get(text)
    for source in (beside.generation_config, beside.config):
        named = source.get(f"{name}_token_id")
        if isinstance(named, list):
            named = named[0] if named else None
        if isinstance(named, int):
            return named
    return from_template[0] if from_template else None


def _template_ids(spec: Mapping[str, Any] | None, where: str) -> tuple[list[int], list[int]]:
    """Find the ids that the post-processor puts before and after a single text."""
    before: list[int] = []
    after: list[int] = []
    if spec is None:
        return before, after
    kind = spec["type"]
    if kind == "Sequence":
        for part in spec["processors"]:
            first, last = _template_ids(part, where)
            before, after = first + before, after + last
    elif kind == "TemplateProcessing":
        seen = False
        for piece in spec["single"]:
            if "Sequence" in piece:
                seen = True
                continue
            added = spec["special_tokens"][piece["SpecialToken"]["id"]]["ids"]
            (after if seen else before).extend(added)
    elif kind in ("BertProcessing", "RobertaProcessing"):
        before, after = [spec["cls"][1]], [spec["sep"][1]]
    elif kind != "ByteLevel":  # which only moves offsets
        raise TokenizerError(f"{where}: the post_processor {kind!r} is not implemented")
    return before, after
