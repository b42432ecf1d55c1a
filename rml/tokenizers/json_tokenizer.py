"""The tokenizer of a Hugging Face folder: tokenizer.json and what stands beside it.

Whatever a tokenizer.json asks for that changes ids or text is done or refused by name (`json_keys`
lists it all). Truncation and padding are left out: they are settings of a call, and Transformers
resets them too.

Source: the documentation of Hugging Face tokenizers.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from rml.errors import TokenizerError
from rml.tokenizers.byte_level import as_bytes, to_visible
from rml.tokenizers.char_bpe import CharBPE
from rml.tokenizers.json_decoders import Decoder, read_decoder
from rml.tokenizers.json_ends import Beside, read_ends
from rml.tokenizers.json_keys import check_keys
from rml.tokenizers.json_stages import (
    Normalizer,
    PreTokenizer,
    read_normalizer,
    read_pre_tokenizer,
)
from rml.tokenizers.sentencepiece import WordCutter
from rml.tokenizers.special_tokens import SpecialToken, SpecialTokens
from rml.tokenizers.template_source import named_sources
from rml.tokenizers.text_model import Parts, Prefix
from rml.tokenizers.word_cache import WordCache

__all__ = ["json_parts"]

_MAX_TOKENS: Final = 1 << 24


class JsonModel:
    """The steps of a tokenizer.json between special tokens, as a `TextModel`."""

    def __init__(
        self,
        tokens: Sequence[str],
        bpe: CharBPE,
        normalizer: Normalizer,
        later: Sequence[SpecialToken],
        pre_tokenizer: PreTokenizer,
        decoder: Decoder,
        cutter: WordCutter | None,
    ) -> None:
        self.prefix: Prefix = "never"
        if decoder.strips:  # what encoding puts there, and at least at the beginning
            added = normalizer.prefix if normalizer.prefix != "never" else pre_tokenizer.prefix
            self.prefix = added if added != "never" else "first"
        self.joined_bytes = self._joined_bytes if decoder.joins else None
        self._tokens = tokens
        self._bpe = bpe
        self._normalizer = normalizer
        self._later = SpecialTokens(later)
        self._pre_tokenizer = pre_tokenizer
        self._decoder = decoder
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
        """Bytes that an ordinary token stands for at the beginning of a text."""
        return self._decoder(self._tokens[token_id])

    def problems(self) -> list[str]:
        """Say what is odd about the vocabulary."""
        return self._bpe.problems(self._pre_tokenizer.byte_level)

    def _joined_bytes(self, token_id: int) -> bytes:
        return self._decoder(self._tokens[token_id], first=False)

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
    except (LookupError, TypeError, AttributeError, ValueError, ArithmeticError) as error:
        # One net for every missing or mistyped member, instead of a check at each.
        raise TokenizerError(
            f"{where}: not the structure of a tokenizer.json: {type(error).__name__}: {error}"
        ) from error


def _parts(document: Mapping[str, Any], beside: Beside, where: str) -> Parts:
    check_keys("document", "tokenizer.json", document, where)
    model = document["model"]
    _check_model(model, where)
    normalizer = read_normalizer(document.get("normalizer"), where)
    pre_tokenizer = read_pre_tokenizer(document.get("pre_tokenizer"), where)
    merges = _merges(model["merges"], where)
    specials = _added_tokens(document, beside, bool(normalizer.steps), where)
    tokens = _tokens_by_id(model["vocab"], specials, where)
    ends = read_ends(document, beside, tokens, specials, merges, where)
    specials = _with_hidden(specials, ends.hidden, tokens, bool(normalizer.steps))
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
        merges,
        byte_ids=byte_ids,
        unknown_id=unknown_id,
        fuse_unknown=bool(model.get("fuse_unk")),
        ignore_merges=bool(model.get("ignore_merges")),
    )
    # Cutting at spaces only makes it faster; it must not keep apart what is taken whole, or what
    # would meet where a character without a token leaves no trace.
    leaves_trace = len(byte_ids or ()) == 256 or (unknown_id is not None and not bpe.fuse_unknown)
    cuts = leaves_trace and not (pre_tokenizer.byte_level or bpe.ignore_merges)
    decoder = read_decoder(document.get("decoder"), where)
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
        decoder,
        WordCutter(vocab) if cuts else None,
    )
    return Parts(
        model=text_model,
        tokens=tokens,
        specials=specials,
        special_bytes={token.id: decoder.of_added(tokens[token.id]) for token in specials},
        bos_id=ends.bos_id,
        eos_id=ends.eos_id,
        before=ends.before,
        after=ends.after,
        end_tokens=ends.tokens,
        chat_templates=_chat_templates(beside, where),
    )


def _check_model(model: Mapping[str, Any], where: str) -> None:
    kind = model.get("type", "BPE" if "merges" in model else None)
    if kind != "BPE":
        raise TokenizerError(f"{where}: the model {kind!r} is not implemented; rml reads BPE")
    check_keys("model", kind, model, where)
    for key in ("continuing_subword_prefix", "end_of_word_suffix", "dropout"):
        if model.get(key):
            raise TokenizerError(f"{where}: the model's {key} {model[key]!r} is not implemented")


def _with_hidden(
    specials: Sequence[SpecialToken],
    hidden: Sequence[int],
    tokens: Sequence[str],
    normalizing: bool,
) -> list[SpecialToken]:
    """Make control tokens of these ids, whatever they were."""
    found = {token.id: token for token in specials}
    for i in hidden:
        token = found.get(i, SpecialToken(tokens[i], i, control=True))
        found[i] = replace(token, control=True, normalized=token.normalized and normalizing)
    return [found[i] for i in sorted(found)]


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
        check_keys("added token", "AddedToken", token, where)
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


def _chat_templates(beside: Beside, where: str) -> dict[str, str]:
    return {
        **named_sources(beside.processor_template.get("chat_template"), where),
        **named_sources(beside.tokenizer_config.get("chat_template"), where),
        **beside.templates,
    }
