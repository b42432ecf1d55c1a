"""Random requests from several threads: every answer is right, and nothing is left behind.

Ten seconds by default; ``RML_SOAK_SECONDS=600`` soaks for ten minutes.
"""

import asyncio
import contextlib
import gc
import os
import random
import signal
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import rml
from rml import ArgumentError, ClosedError, ContextOverflow, RmlError

LLAMA = Path(__file__).resolve().parents[1] / "fixtures" / "llama" / "model.gguf"
SECONDS = float(os.environ.get("RML_SOAK_SECONDS", "10"))
N_THREADS = 8
PAGE = 16 * 128  # bytes of the toy's keys and values, f16
CHAT = [{"role": "system", "content": "Be kind"}, {"role": "user", "content": "Hello there"}]

BAD = [
    {"prompt": [7] * 200},
    {"prompt": [-1]},
    {"prompt": ""},
    {"prompt": [5], "temperature": -1},
    {"prompt": [5], "max_token": 3},
    {"prompt": [5], "logit_bias": {999: 1.0}},
    {"prompt": [5], "stop": [""]},
    {"prompt": [5], "session": "mine"},
    {"prompt": [5], "truncate": "right"},
]


def requests():
    """Requests of many kinds, each with a seed, so that it has one right answer."""
    rng = random.Random(0)
    for i in range(40):
        options = {"max_tokens": rng.choice([0, 1, 3, 10, 40]), "seed": i}
        if rng.random() < 0.3:
            options["temperature"] = 0
        if rng.random() < 0.3:
            options["repeat_penalty"] = 1.2
        if rng.random() < 0.2:
            options["dry_multiplier"] = 0.8
        if rng.random() < 0.3:
            options["stop"] = ["e", "th"]
        if rng.random() < 0.3:
            options["ignore_eos"] = True
        if rng.random() < 0.2:
            options |= {"echo": True, "logprobs": rng.randrange(3)}
        yield [rng.randrange(3, 288) for _ in range(rng.choice([1, 2, 15, 16, 17, 60]))], options


class Soak:
    """What the threads do; `wrong` collects everything that should not have happened."""

    def __init__(self, model, folder):
        self.model, self.folder = model, folder
        self.requests = list(requests())
        self.expected = [model.generate(ids, **options) for ids, options in self.requests]
        self.chat = model.chat(CHAT, max_tokens=12, seed=5).token_ids
        self.vector = model.embed([5, 6, 7])
        self.score = model.score([5, 6, 7, 8]).total
        self.wrong, self.counts = [], {}
        self.actions = [
            self.generate, self.stream, self.leave, self.cancel, self.keep_a_session, self.fork,
            self.save, self.several, self.answer, self.measure, self.refuse, self.shorten,
            self.raises, self.close_in_the_middle, self.drop, self.tasks, self.listed,
        ]  # fmt: skip

    def run(self, seed, until):
        rng = random.Random(seed)
        while time.monotonic() < until:
            action = rng.choice(self.actions)
            try:
                action(rng)
            except Exception as error:  # noqa: BLE001 - the test shows all of them
                self.wrong.append((action.__name__, error))
            self.counts[action.__name__] = self.counts.get(action.__name__, 0) + 1

    def check(self, name, found, expected):
        if found != expected:
            self.wrong.append((name, found, expected))

    def pick(self, rng):
        i = rng.randrange(len(self.requests))
        return *self.requests[i], self.expected[i]

    def generate(self, rng):
        ids, options, expected = self.pick(rng)
        reply = self.model.generate(ids, **options)
        self.check("ids", reply.token_ids, expected.token_ids)
        self.check("text", reply.text, expected.text)

    def stream(self, rng):
        ids, options, expected = self.pick(rng)
        text = "".join(piece.text for piece in self.model.stream(ids, **options))
        self.check("streamed", text, expected.text)

    def leave(self, rng):
        ids, options, expected = self.pick(rng)
        stream = self.model.stream(ids, **options)
        for _ in range(rng.randrange(4)):
            if next(stream, None) is None:
                break
        if rng.random() < 0.8:
            stream.close()
            self.check("left", expected.text.startswith(stream.result().text), True)

    def cancel(self, rng):
        ids, options, expected = self.pick(rng)
        stream = self.model.stream(ids, **options)
        timer = threading.Timer(rng.random() * 0.01, stream.cancel)
        timer.start()
        reply = stream.result()
        timer.join()
        self.check("cancelled", expected.token_ids[: len(reply.token_ids)], reply.token_ids)
        if reply.finish_reason != "cancelled":
            self.check("too late", reply.token_ids, expected.token_ids)

    def keep_a_session(self, rng):
        with self.model.session() as session:
            for _ in range(3):
                ids, options, expected = self.pick(rng)
                if rng.random() < 0.2:
                    session.cancel()
                    session.uncancel()
                reply = self.model.generate(ids, session=session, **options)
                self.check("kept", reply.token_ids, expected.token_ids)

    def fork(self, rng):
        ids, options, expected = self.pick(rng)
        with self.model.session(n_sequences=2) as session:
            session.forward(ids)
            with session.fork() as fork:
                for each in (fork, session):
                    reply = self.model.generate(ids, session=each, **options)
                    self.check("forked", reply.token_ids, expected.token_ids)

    def save(self, rng):
        ids, options, expected = self.pick(rng)
        path = self.folder / f"{threading.get_ident()}-{rng.randrange(3)}"
        with self.model.session() as session:
            session.forward(ids)
            session.save(path)
        with self.model.load_session(path) as session:
            reply = self.model.generate(ids, session=session, **options)
            self.check("loaded", reply.token_ids, expected.token_ids)

    def several(self, rng):
        ids, options, expected = self.pick(rng)
        first, _ = self.model.generate(ids, n=2, **options)
        self.check("of two", first.token_ids, expected.token_ids)

    def answer(self, _rng):
        reply = self.model.chat(CHAT, max_tokens=12, seed=5)
        self.check("chat", reply.token_ids, self.chat)

    def measure(self, _rng):
        self.check("vector", self.model.embed([5, 6, 7]).tolist(), self.vector.tolist())
        self.check("score", self.model.score([5, 6, 7, 8]).total, self.score)

    def refuse(self, rng):
        arguments = dict(rng.choice(BAD))
        try:
            self.model.generate(arguments.pop("prompt"), **arguments)
        except (ArgumentError, ContextOverflow):
            return
        self.wrong.append(("not refused", arguments))

    def raises(self, rng):
        ids, options, _ = self.pick(rng)
        left = rng.randrange(1, 4)

        def callback(_ids, logits):
            nonlocal left
            left -= 1
            if not left:
                raise ZeroDivisionError
            return logits

        try:
            self.model.generate(ids, logits_processor=callback, **options)
        except ZeroDivisionError:
            return
        self.check("raised nothing", left > 0, True)

    def close_in_the_middle(self, rng):
        ids, options, expected = self.pick(rng)
        session = self.model.session()
        timer = threading.Timer(rng.random() * 0.01, session.close)
        timer.start()
        try:
            reply = self.model.generate(ids, session=session, **options)
            self.check("before the close", reply.token_ids, expected.token_ids)
        except ClosedError:
            pass
        timer.join()

    def drop(self, rng):
        ids, options, _ = self.pick(rng)
        next(self.model.stream(ids, **options), None)

    def tasks(self, rng):
        picked = [self.pick(rng) for _ in range(3)]

        async def collect(ids, options):
            return "".join([p.text async for p in self.model.stream(ids, **options)])

        async def main():
            tasks = [asyncio.ensure_future(collect(ids, options)) for ids, options, _ in picked]
            gone = tasks.pop()
            await asyncio.sleep(rng.random() * 0.01)
            gone.cancel()
            texts = await asyncio.gather(*tasks)
            with contextlib.suppress(asyncio.CancelledError):
                await gone
            return texts

        self.check("tasks", asyncio.run(main()), [expected.text for *_, expected in picked[:2]])

    def listed(self, rng):
        ids, options, expected = self.pick(rng)
        for reply in self.model.generate([ids, ids], **options):
            self.check("listed", reply.token_ids, expected.token_ids)

    def shorten(self, rng):
        ids = [7] * rng.randrange(100, 300)
        reply = self.model.generate(ids, truncate="left", max_tokens=2)
        self.check("prompt", len(reply.prompt_token_ids) + reply.usage.dropped_tokens, len(ids))


def resident():
    """Bytes of memory in use."""
    gc.collect()
    statm = Path("/proc/self/statm")
    if not statm.exists():
        pytest.skip("no /proc")
    return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def soak(work, seconds):
    """Work in threads, while Ctrl-C comes again and again to a main thread that generates."""
    until = time.monotonic() + seconds
    threads = [
        threading.Thread(target=work.run, args=(random.random(), until)) for _ in range(N_THREADS)
    ]
    for thread in threads:
        thread.start()
    rng, interrupted = random.Random(), 0
    while time.monotonic() < until:
        ids, options, expected = work.pick(rng)
        try:
            signal.setitimer(signal.ITIMER_REAL, rng.choice([0.001, 0.01, 0.03]))
            reply = work.model.generate(ids, **options)
            signal.setitimer(signal.ITIMER_REAL, 0)
            work.check("not interrupted", reply.token_ids, expected.token_ids)
        except KeyboardInterrupt:
            interrupted += 1
    for thread in threads:
        thread.join()
    return interrupted


@pytest.fixture
def alarm(monkeypatch):
    """The timer's signal is Ctrl-C.

    It may come into a callback of Python's own (of a WeakSet, say), which then goes on and reports
    it; pytest would keep the report, with all frames that were running.
    """
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.slow
@pytest.mark.usefixtures("alarm")
@pytest.mark.parametrize("n_pages", [None, 12])  # ample, and for one request and a half
def test_random_requests_leave_right_answers_and_flat_memory(tmp_path, n_pages, pages_in_use):
    budget = {} if n_pages is None else {"kv_memory": n_pages * PAGE}
    with rml.load(LLAMA, n_batch=16, **budget) as model:
        work = Soak(model, tmp_path)
        assert soak(work, 0.2 * SECONDS)
        before = resident()
        soak(work, 0.3 * SECONDS)
        after = resident()

        assert work.wrong == []
        assert set(work.counts) == {action.__name__ for action in work.actions}
        # What the allocator keeps, and a stream that was dropped and waits for the collector.
        assert after - before < 8 << 20
        gc.collect()
        assert model._sessions.n_open == 0
        engine = model._sessions.engine
        assert not [*engine._joined(), *engine._waiters, *engine._in_step]
        assert pages_in_use(model) == 0
        with model.session() as used, rml.load(LLAMA) as fresh, fresh.session() as session:
            ids = list(range(3, 90))
            np.testing.assert_array_equal(
                used.forward(ids, all_logits=True), session.forward(ids, all_logits=True)
            )
    with pytest.raises(RmlError):
        model.generate([5])
