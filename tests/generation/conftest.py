"""A decoder whose next tokens are scripted, and a tokenizer of bytes.

They stand for the real ones where a test is about the order of events, not about numbers. What the
fake decoder believes is what the pages hold that it was led to, so a session that forgets or
repeats a token is found out.
"""

import sys
from types import SimpleNamespace

import numpy as np
import pytest

from rml._kernels.step import Step
from rml.engine.engine import Engine
from rml.engine.sessions import Sessions
from rml.llm.layers import LayerGroup
from rml.llm.plan import Aborted

BOS, EOS, TOOL = 256, 257, 258
N_VOCAB = 300  # rows; ids from 259 on are padding


class FakeEvaluator:
    """Gives the logits that a script returns for all tokens so far, as the pages remember them.

    A page holds the ids of its tokens where a real one would hold their keys, so that a page table
    that leads elsewhere, or a token that was forgotten, is found out.
    """

    def __init__(self, decoder, pages):
        self.decoder, (self.pages,) = decoder, pages
        self.abort = np.zeros(1, np.int32)

    def begin(self, n_rows):
        self.step = Step(n_rows)
        return self.step

    def run(self):
        step, rows = self.step, []
        for s in range(step.n_sequences):
            ids = step.ids[step.rows_of(s)].tolist()
            position, table = int(step.positions[step.first[s]]), step.table(0, s)
            self.decoder.calls.append(ids)
            for p, token in enumerate(ids, position):
                self._memory()[table[p // 16], p % 16] = token
                rows.append(self._logits(self.text_of(table, p + 1)))
                if self.abort[0]:
                    raise Aborted
        self.rows = np.array(rows, np.float32)

    def text_of(self, table, n):
        """What the pages say that the first n tokens are."""
        return (
            self._memory()[table[: -(-n // 16)]].reshape(-1)[:n].astype(int).tolist() if n else []
        )

    def _memory(self):
        return self.pages.slabs[0].k[:, 0, 0, 0]  # (pages, 16), all in one slab

    @property
    def logits(self):
        return self.rows[self.step.outputs[: self.step.n_outputs]]

    def logits_of(self, start, stop, out):
        out[...] = self.rows[start:stop]

    def _logits(self, tokens):
        answer = self.decoder.script(tokens)
        if isinstance(answer, np.ndarray):
            return answer.astype(np.float32)
        logits = np.zeros(self.decoder.config.n_vocab, np.float32)
        logits[answer] = 10
        return logits


class FakeDecoder:
    """What stands for a model.

    `script(tokens)` returns an id (whose logit is 10, all others 0) or an array.
    """

    groups = (LayerGroup((0,), 1, 2),)
    compute, n_ctx = "f32", 64

    def __init__(self, script, n_vocab=N_VOCAB):
        self.script = script
        self.config = SimpleNamespace(n_vocab=n_vocab, d_model=8, n_ctx_train=64)
        self.calls = []

    def evaluator(self, pages):
        self.running = FakeEvaluator(self, pages)
        return self.running

    def told(self, session):
        """Tokens of a session, as the pages that it leads to remember them."""
        table = session._sequence.tables[0]
        return self.running.text_of(table.entries[: len(table)], session.position)

    @property
    def n_pages_used(self):
        """Pages that somebody holds."""
        self.store.collect()
        return self.store.pools[0].n_used


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

    def make(script, n_ctx=64, n_vocab=N_VOCAB, n_batch=512):
        decoder = FakeDecoder(script, n_vocab)
        checkpoint = SimpleNamespace(path="fake.gguf")
        engine = Engine(decoder, kv_memory=1 << 20, n_batch=n_batch)
        decoder.store = engine.store("f32")
        return Sessions(engine, checkpoint, n_ctx=n_ctx, kv_type="f32"), decoder

    return make


@pytest.fixture
def watch(monkeypatch):
    """`watch(model, note)`: what `note` says of the parts of each step from now on."""

    def start(model, note):
        engine, noted = model._sessions.engine, []
        run = engine._run

        def noting(parts):
            noted.append(note(parts))
            run(parts)

        monkeypatch.setattr(engine, "_run", noting)
        return noted

    return start


@pytest.fixture
def pages_in_use():
    """`pages_in_use(model)`: pages that sequences use; the counts are what the tables say."""

    def count(model):
        store = model._sessions.engine.store(model.kv_type)
        store.collect()
        (pool,) = store.pools
        before = (pool.n_used, pool.n_kept, pool.n_idle, pool.n_free)
        store.recount()
        assert (pool.n_used, pool.n_kept, pool.n_idle, pool.n_free) == before
        return pool.n_used

    return count


@pytest.fixture
def calls_of():
    """`calls_of(do)`: how many functions are called while `do` runs.

    With `counts`, those only of which ``counts(frame)`` is true.
    """

    def measure(do, counts=lambda _: True):
        n = 0

        def count(frame, _event, _arg):
            nonlocal n
            n += counts(frame)

        sys.setprofile(count)
        try:
            do()
        finally:
            sys.setprofile(None)
        return n

    return measure


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
