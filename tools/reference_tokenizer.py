"""A tokenizer that is not rml's, built from a GGUF vocabulary, for the ids of golden prompts.

The work is done by Hugging Face's `tokenizers` library; this file only hands it the vocabulary:

gpt2   byte-level BPE; the merges are in the file, the splitting rule is named by ``pre``
llama  SentencePiece BPE; merges are every split of a piece into two pieces, best score first
"""

from pathlib import Path
from typing import Any

from gguf import GGUFReader
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

__all__ = ["read_tokenizer"]

CONTROL, USER_DEFINED = 3, 4  # GGUF token types
SPLITTERS = {
    "smollm": pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    ),
}


def read_tokenizer(path: Path) -> tuple[Tokenizer, list[int]]:
    """Build the tokenizer of a GGUF file.

    Returns
    -------
    tokenizer : Tokenizer
        Parses control tokens in the text; adds none of its own.
    start : list of int
        Ids that belong before every text: BOS where the file asks for it.
    """
    fields = GGUFReader(path).fields

    def get(key: str, default: Any = None) -> Any:
        entry = fields.get(f"tokenizer.ggml.{key}")
        return default if entry is None else entry.contents()

    pieces, types = get("tokens"), get("token_type")
    if get("model") == "gpt2":
        tokenizer = _byte_level(pieces, get("merges"), get("pre"))
    elif get("model") == "llama" and not get("add_space_prefix", True):
        tokenizer = _sentencepiece(pieces, get("scores"))
    else:
        raise NotImplementedError(f"{path}: no reference tokenizer for {get('model')!r}")
    tokenizer.add_tokens([piece for piece, kind in zip(pieces, types, strict=True) if kind == 4])
    tokenizer.add_special_tokens(
        [
            AddedToken(piece, special=True, normalized=False)
            for piece, kind in zip(pieces, types, strict=True)
            if kind == CONTROL
        ]
    )
    return tokenizer, [get("bos_token_id")] if get("add_bos_token", False) else []


def _byte_level(pieces: list[str], merges: list[str], pre: str) -> Tokenizer:
    vocabulary = {piece: i for i, piece in enumerate(pieces)}
    pairs = [tuple(line.split(" ")) for line in merges]
    tokenizer = Tokenizer(models.BPE(vocabulary, pairs))
    tokenizer.pre_tokenizer = SPLITTERS[pre]
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _sentencepiece(pieces: list[str], scores: list[float]) -> Tokenizer:
    vocabulary = {piece: i for i, piece in enumerate(pieces)}
    pairs = [
        (-scores[i], i, piece[:cut], piece[cut:])
        for i, piece in enumerate(pieces)
        for cut in range(1, len(piece))
        if piece[:cut] in vocabulary and piece[cut:] in vocabulary
    ]
    pairs.sort(key=lambda pair: pair[:2])
    model = models.BPE(
        vocabulary,
        [(left, right) for _, _, left, right in pairs],
        byte_fallback=True,
        fuse_unk=True,
        unk_token="<unk>",
    )
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    return tokenizer
