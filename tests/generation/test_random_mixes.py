"""Any mix of requests gives each the ids and the bits of logits that it has alone.

What is asked for follows from a seed; who meets whom in a step does not, and must not matter.
"""

import asyncio
import contextlib
import hashlib
import random
import threading
from pathlib import Path

import numpy as np
import pytest

import rml
from rml.sampling.sampler import Sampler

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures"
PURE = rml.info()["backend"] == "python"
BEGINNINGS = [[int(i) for i in np.random.default_rng(s).integers(3, 280, 64)] for s in range(3)]


@pytest.fixture(autouse=True)
def rows(monkeypatch):
    """Every sampler keeps a digest of each row of logits that it chooses from."""
    sample = Sampler.sample

    def noted(self, logits, position=None):
        found = self.__dict__.setdefault("rows", {})
        digest = hashlib.blake2b(np.ascontiguousarray(logits).tobytes(), digest_size=8).digest()
        assert found.setdefault(position, digest) == digest
        return sample(self, logits, position)

    monkeypatch.setattr(Sampler, "sample", noted)


def request_of(rng):
    """A prompt and options."""
    beginning = rng.choice(BEGINNINGS)[: rng.choice([0, 5, 16, 31, 48, 64])]
    ids = beginning + [rng.randrange(3, 280) for _ in range(rng.randrange(1, 20))]
    options = {"max_tokens": rng.choice([0, 1, 5, 12, 24]), "seed": rng.randrange(99)}
    options["ignore_eos"] = rng.random() < 0.7
    options["prefix_cache"] = rng.random() < 0.8
    for chance, more in (
        (0.3, {"temperature": 0}),
        (0.2, {"repeat_penalty": 1.3, "presence_penalty": 0.2}),
        (0.1, {"dry_multiplier": 0.8}),
        (0.1, {"mirostat": 2, "temperature": 1.0}),
        (0.2, {"logprobs": 2}),
        (0.1, {"logprobs": 1, "echo": True}),
        (0.2, {"stop": ["e", "th"]}),
        (0.2, {"stop_token_ids": [rng.randrange(288) for _ in range(20)]}),
        (0.1, {"logits_processor": lambda _ids, logits: logits * np.float32(0.5)}),
        (0.1, {"progress": lambda *_: None}),
    ):
        if rng.random() < chance:
            options |= more
    return ids, options


def what(stream, completion):
    """Everything that has to be the same."""
    sampler = stream._generation._sampler
    return (
        completion.token_ids,
        completion.text,
        completion.logprobs,
        completion.prompt_logprobs,
        completion.finish_reason,
        completion.stop_reason,
        sampler.__dict__.get("rows", {}),
    )


def is_beginning(found, whole):
    """Whether what was cancelled is a beginning of the whole."""
    ids, rows = found[0], found[-1]
    return whole[0][: len(ids)] == ids and rows.items() <= whole[-1].items()


class Mix:
    """Requests, what each gives alone, and several ways to ask for them."""

    def __init__(self, path, seed, n, requests=None, **load):
        rng = random.Random(seed)
        self.requests = requests or [request_of(rng) for _ in range(n)]
        load = load | {"n_ctx": 128}
        with rml.load(path, **load | {"prefix_cache": False, "n_threads": 1}) as cold:
            self.alone = []
            for ids, options in self.requests:
                stream = cold.stream(ids, **options)
                self.alone.append(what(stream, stream.result()))
            self.score = cold.score(BEGINNINGS, top_logprobs=1)
            self.vectors = cold.embed(BEGINNINGS)
        self.wrong = []

    def check(self, i, stream):
        found = what(stream, stream.result())
        if found != self.alone[i]:
            self.wrong.append((i, found, self.alone[i]))

    def whole(self, model, i, _rng):
        ids, options = self.requests[i]
        self.check(i, model.stream(ids, **options))

    def read(self, model, i, rng):
        ids, options = self.requests[i]
        stream = model.stream(ids, **options)
        text = ""
        for piece in stream:
            text += piece.text
            if rng.random() < 0.1:
                model.generate([7, 8], max_tokens=1)
        if text != self.alone[i][1]:
            self.wrong.append((i, text))
        self.check(i, stream)

    def in_turn(self, model, i, rng):
        chosen = [i, *(rng.randrange(len(self.requests)) for _ in range(3))]
        streams = [model.stream(self.requests[j][0], **self.requests[j][1]) for j in chosen]
        while any([next(s, None) for s in streams if rng.random() < 0.8]):  # noqa: C419 - each
            pass
        for j, stream in zip(chosen, streams, strict=True):
            self.check(j, stream)

    def cancel(self, model, i, rng):
        ids, options = self.requests[i]
        stream = model.stream(ids, **options)
        timer = threading.Timer(rng.random() * 0.02, stream.cancel)
        timer.start()
        with contextlib.suppress(StopIteration):
            for _ in range(rng.randrange(4)):
                next(stream)
        if rng.random() < 0.5:
            stream.close()
        found = what(stream, stream.result())
        timer.join()
        if not is_beginning(found, self.alone[i]):
            self.wrong.append((i, found, self.alone[i]))

    def drop(self, model, i, _rng):
        ids, options = self.requests[i]
        next(model.stream(ids, **options), None)

    def session(self, model, i, rng):
        with model.session() as session:
            for j in (i, rng.randrange(len(self.requests)), i):
                ids, options = self.requests[j]
                stream = model.stream(ids, session=session, **options)
                self.check(j, stream)
                with session.fork() as fork:
                    self.check(j, model.stream(ids, session=fork, **options))

    def several(self, model, i, _rng):
        ids, options = self.requests[i]
        first, _ = model.generate(ids, n=2, **options)
        if (first.token_ids, first.logprobs) != (self.alone[i][0], self.alone[i][2]):
            self.wrong.append((i, first))

    def listed(self, model, i, _rng):
        ids, options = self.requests[i]
        replies = model.generate([ids, BEGINNINGS[0][:20], ids], **options)
        for reply in (replies[0], replies[2]):
            if (reply.token_ids, reply.logprobs) != (self.alone[i][0], self.alone[i][2]):
                self.wrong.append((i, reply))

    def tasks(self, model, i, rng):
        chosen = [i, *(rng.randrange(len(self.requests)) for _ in range(2))]
        streams = [model.stream(self.requests[j][0], **self.requests[j][1]) for j in chosen]

        async def collect(stream):
            async for _ in stream:
                pass

        async def main():
            await asyncio.gather(*map(collect, streams))

        asyncio.run(main())
        for j, stream in zip(chosen, streams, strict=True):
            self.check(j, stream)

    def measure(self, model, _i, _rng):
        if model.score(BEGINNINGS, top_logprobs=1) != self.score:
            self.wrong.append("score")
        if not np.array_equal(model.embed(BEGINNINGS), self.vectors):
            self.wrong.append("vectors")

    def run(self, model, seed, n_each, n_threads):
        """Ask in several threads, in ways that follow from the seed."""
        ways = [
            self.whole, self.read, self.in_turn, self.cancel, self.drop, self.session,
            self.several, self.listed, self.tasks, self.measure,
        ]  # fmt: skip

        def work(number):
            rng = random.Random(f"{seed} {number}")
            for _ in range(n_each):
                way, i = rng.choice(ways), rng.randrange(len(self.requests))
                try:
                    way(model, i, rng)
                except Exception as error:  # noqa: BLE001 - the test shows all of them
                    self.wrong.append((way.__name__, i, error))

        threads = [threading.Thread(target=work, args=(i,), daemon=True) for i in range(n_threads)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(300)
        assert not any(thread.is_alive() for thread in threads)


MIXES = [
    ("llama/model.gguf", {"kv_type": "f32", "n_batch": 16}, None),
    ("llama/model-q4_0.gguf", {"kv_type": "f16", "n_batch": 512}, None),
    ("llama/model-q4_0.gguf", {"kv_type": "f16", "n_batch": 7}, 12),
    ("llama/model.gguf", {"kv_type": "int8", "n_batch": 512}, 12),
    ("gemma3_text/model.gguf", {"kv_type": "f16", "n_batch": 64}, None),
    ("mixtral/model.gguf", {"kv_type": "f16", "n_batch": 1}, None),
]


@pytest.mark.parametrize(("path", "load", "n_pages"), MIXES[:3] if PURE else MIXES)
@pytest.mark.parametrize("n_threads", [2] if PURE else [1, 2])
def test_a_random_mix_gives_each_request_what_it_gets_alone(
    path, load, n_pages, n_threads, pages_in_use
):
    path = FIXTURES / path
    mix = Mix(path, n_threads, 6 if PURE else 24, **load)
    if n_pages is not None:  # about one request and a half
        with rml.load(path, kv_type=load["kv_type"]) as model:
            page = model._sessions.engine.store(model.kv_type).pools[0].pages.page_bytes
        load = load | {"kv_memory": n_pages * page}
    with rml.load(path, n_threads=n_threads, n_ctx=128, **load) as model:
        mix.run(model, 1, 2 if PURE else 12, 5)
        assert mix.wrong == []
        assert pages_in_use(model) == model._sessions.n_open == 0


# ---- what would be wrong is found ----


def few(requests=None):
    """A mix of few requests, and a model for it."""
    mix = Mix(FIXTURES / "llama" / "model.gguf", 5, 8, requests)
    return mix, rml.load(FIXTURES / "llama" / "model.gguf", n_ctx=128)


def test_page_tables_that_are_mixed_up_are_found(monkeypatch):
    options = {"max_tokens": 12, "ignore_eos": True, "seed": 1, "prefix_cache": False}
    mix, model = few([([3 + i] * 20, options) for i in range(4)])
    with model:
        engine = model._sessions.engine
        chosen, swaps = engine._chosen, []

        def swapped():
            parts = chosen()
            work = [work for work, *_ in parts if len(work.sequence) >= 16]
            if len(work) > 1:
                swaps.append(len(work))
                tables = [w.sequence.tables[0] for w in work[:2]]
                first, second = (table[0] for table in tables)
                tables[0][0], tables[1][0] = second, first
            return parts

        streams = [model.stream(ids, **options) for ids, options in mix.requests]
        monkeypatch.setattr(engine, "_chosen", swapped)
        while any([next(stream, None) for stream in streams]):  # noqa: C419 - each of them
            pass
        for i, stream in enumerate(streams):
            mix.check(i, stream)
        assert swaps
        assert mix.wrong


def test_beginnings_under_a_wrong_salt_are_found():
    mix, model = few()
    with model:
        store = model._sessions.engine.store(model.kv_type)
        for ids, options in mix.requests:
            model.generate(ids, **options | {"prefix_cache": True})
        slab = store.pools[0].pages.slabs[0]
        slab.v[...] = slab.v[::-1].copy()  # as if they were computed with something else
        store.salt = "other"
        for i in range(8):
            mix.whole(model, i, None)
        assert mix.wrong == []
        store.salt = model.kv_type
        for i in range(8):
            mix.whole(model, i, None)
        assert mix.wrong
