"""Byte-pair encoding over characters: the model of a tokenizer.json.

Where `ByteLevelBPE` starts from bytes, this starts from the characters of a word. In a byte-level
vocabulary those are the visible spellings of bytes; in others (Llama, Gemma) they are characters,
and one that is no token becomes its UTF-8 bytes (``<0x0A>``) or the unknown token.

Source: the ``BPE`` model of Hugging Face tokenizers.
"""

from collections.abc import Mapping, Sequence

from rml.tokenizers.bpe import merge_table, merge_word, missing_bytes, missing_merges
from rml.tokenizers.byte_level import BYTE_TO_CHAR, as_bytes

__all__ = ["CharBPE"]


class CharBPE:
    """Ids of single words; immutable.

    Parameters
    ----------
    vocab : mapping of str to int
        The tokens that text may become.
    n_vocab : int
        The first id that no token has.
    merges : pair of equally long sequences of str
        Left and right parts, in rank order.
    byte_ids : mapping of int to int or None
        Id of each byte token, for vocabularies that fall back to bytes.
    unknown_id : int or None
        Stands for a character that has no token. Without it such a character leaves no trace.
    fuse_unknown : bool
        Several such characters in a row become one token.
    ignore_merges : bool
        A word that is itself a token is that token, whatever the merges would make of it.
    """

    def __init__(
        self,
        vocab: Mapping[str, int],
        n_vocab: int,
        merges: tuple[Sequence[str], Sequence[str]],
        *,
        byte_ids: Mapping[int, int] | None = None,
        unknown_id: int | None = None,
        fuse_unknown: bool = False,
        ignore_merges: bool = False,
    ) -> None:
        self._vocab = vocab
        self._n_vocab = n_vocab
        self._byte_ids = byte_ids
        self._unknown_id = unknown_id
        self.fuse_unknown = fuse_unknown
        self.ignore_merges = ignore_merges
        self._table, self._missing = merge_table(vocab, n_vocab, merges)
        # Ids past the vocabulary stand for spellings that merges make but no token has.
        self._spellings = {i: text for text, i in self._missing.items()}

    def encode_word(self, word: str) -> tuple[int, ...]:
        """Ids of one word."""
        if self.ignore_merges and (whole := self._vocab.get(word)) is not None:
            return (whole,)
        ids = merge_word(self._symbols(word), self._table)
        if self._spellings:
            ids = [part for i in ids for part in self._spelled(i)]
        return tuple(ids)

    def problems(self, byte_level: bool) -> list[str]:
        """Say what is odd about the vocabulary."""
        if byte_level:
            byte_ids = [self._vocab.get(BYTE_TO_CHAR[byte]) for byte in range(256)]
        else:
            byte_ids = [(self._byte_ids or {}).get(byte) for byte in range(256)]
        bytes_matter = byte_level or self._byte_ids is not None
        return missing_merges(self._missing) + (missing_bytes(byte_ids) if bytes_matter else [])

    def _symbols(self, word: str) -> list[int]:
        vocab = self._vocab
        ids = [vocab.get(char, -1) for char in word]
        return ids if -1 not in ids else self._with_fallback(word)

    def _with_fallback(self, word: str) -> list[int]:
        ids: list[int] = []
        unknown = False  # whether the last character became the unknown token
        for char in word:
            found = self._vocab.get(char)
            parts = [found] if found is not None else self._bytes(char)
            if parts:
                ids += parts
                unknown = False
            elif self._unknown_id is not None:
                if not (unknown and self.fuse_unknown):
                    ids.append(self._unknown_id)
                unknown = True
        return ids

    def _bytes(self, char: str) -> list[int]:
        if self._byte_ids is None:
            return []
        ids = [self._byte_ids.get(byte) for byte in as_bytes(char)]
        return [i for i in ids if i is not None] if None not in ids else []

    def _spelled(self, token_id: int) -> list[int]:
        if token_id < self._n_vocab:
            return [token_id]
        return self._symbols(self._spellings[token_id])
