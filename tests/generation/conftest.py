"""A decoder whose next tokens are scripted, and a tokenizer of bytes.

They stand for the real ones where a test is about the order of events, not about numbers. What the
fake decoder believes is checked against what its cache was told, so a session that forgets or
repeats a token is found out.
"""

from types import SimpleNamespace

import numpy as np
import pytest

from rml.errors import ArgumentError, ClosedError, ContextOverflow
from rml.generation.session_pool import SessionPool
from rml.llm.plan import Aborted

BOS, EOS, TOOL = 256, 257, 258
N_VOCAB = 300  # rows; ids from 259 on are padding


class FakeCache:
    def __init__(self, n_ctx):
        self.n_ctx, self.tokens, self.closed = n_ctx, [], False
        self.abort = np.zeros(1, np.int32)

    @property
    def size(self):
        return len(self.tokens)

    @property
    def nbytes(self):
        return len(self.tokens)

    def truncate(self, n):
        assert 0 <= n <= len(self.tokens)
        del self.tokens[n:]

    def close(self):
        self.closed = True


class FakeDecoder:
    """Gives the logits that `script` returns for all tokens so far.

    `script(tokens)` returns an id (whose logit is 10, all others 0) or an array.
    """

    def __init__(self, script, n_vocab=N_VOCAB):
        self.script = script
        self.config = SimpleNamespace(n_vocab=n_vocab, d_model=8, n_ctx_train=64)
        self.calls = []
        self.caches = []

    def new_cache(self, n_ctx, kv_type, *, n_sequences=1):
        self.caches.append(FakeCache(n_ctx))
        return self.caches[-1]

    def forward(self, tokens, cache, all_logits=False, out=None):
        ids = np.asarray(tokens)
        if (
            not ids.size
            or ids.dtype.kind not in "iu"
            or ids.min() < 0
            or ids.max() >= self.config.n_vocab
        ):
            raise ArgumentError("bad token")
        if cache.closed:
            raise ClosedError("closed")
        if len(cache.tokens) + len(ids) > cache.n_ctx:
            raise ContextOverflow(len(cache.tokens) + len(ids), cache.n_ctx)
        if cache.abort[0]:
            raise Aborted
        self.calls.append(ids.tolist())
        before = len(cache.tokens)
        rows = []
        for token in ids.tolist():
            cache.tokens.append(token)
            rows.append(self._logits(cache.tokens))
            if cache.abort[0]:
                cache.truncate(before)
                raise Aborted
        result = np.array(rows if all_logits else rows[-1], np.float32)
        if out is None:
            return result
        out[...] = result
        return out

    def step(self, token, cache):
        return self.forward([token], cache)

    def _logits(self, tokens):
        answer = self.script(list(tokens))
        if isinstance(answer, np.ndarray):
            return answer.astype(np.float32)
        logits = np.zeros(self.config.n_vocab, np.float32)
        logits[answer] = 10
        return logits


class ByteTokenizer:
    """Bytes are ids; 256 begins a text, 257 ends it, 258 is the control token <tool>."""

    n_vocab = 259
    bos_id, eos_id = BOS, EOS
    stop_ids = frozenset({EOS})

    def encode(self, text):
        return [BOS, *text.encode()]

    def token_bytes(self, token):
        return (
            bytes([token]) if token < 256 else {BOS: b"<s>", EOS: b"</s>", TOOL: b"<tool>"}[token]
        )

    def token_id(self, text):
        return {"<s>": BOS, "</s>": EOS, "<tool>": TOOL}.get(text)

    def stream_decoder(self, *, previous):
        import codecs

        utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        return SimpleNamespace(
            decode=lambda ids: utf8.decode(bytes(i for i in ids if i < 256)),
            flush=lambda: utf8.decode(b"", final=True),
        )


@pytest.fixture
def byte_tokenizer():
    return ByteTokenizer()


@pytest.fixture
def make_pool():
    """`make_pool(script, n_ctx=64)`: the sessions of a scripted decoder, and the decoder."""

    def make(script, n_ctx=64, n_vocab=N_VOCAB):
        decoder = FakeDecoder(script, n_vocab)
        checkpoint = SimpleNamespace(path="fake.gguf")
        return SessionPool(decoder, checkpoint, n_ctx=n_ctx, kv_type="f16"), decoder

    return make


@pytest.fixture
def make_session(make_pool):
    """`make_session(script, n_ctx=64)`: a session of a scripted decoder, and the decoder."""

    def make(script, n_ctx=64):
        pool, decoder = make_pool(script, n_ctx)
        return pool.open(), decoder

    return make


@pytest.fixture
def says():
    """`says(text)`: a script that answers any prompt of `n` tokens with the bytes of a text."""

    def script(text, n_prompt, then=EOS):
        answer = [*(text.encode() if isinstance(text, str) else text), then]

        def next_token(tokens):
            at = len(tokens) - n_prompt
            return answer[min(at, len(answer) - 1)] if at >= 0 else 0

        return next_token

    return script
