"""Many requests at once, as ratios in one run: of SmolLM2 where it is there, else of a toy.

``RML_MODELS_DIR`` names the folder of ``smollm2.gguf``.
"""

import os
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
TOY = ROOT / "tests" / "fixtures" / "llama" / "model-q8_0.gguf"
OPTIONS = {"temperature": 0, "ignore_eos": True}
N_TOKENS = 24


def model_file():
    found = Path(os.environ.get("RML_MODELS_DIR", "no-such-folder")) / "smollm2.gguf"
    return found if found.exists() else TOY


def random_text(model, n):
    """Tokens that no control token is among, the same in every run."""
    return np.random.default_rng(0).integers(3, min(280, model.config.n_vocab), n).tolist()


def seconds(call):
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def ratio(first, second, n=3):
    """Median of the time of `first` in units of that of `second`, in turn."""
    second()
    return round(float(np.median([seconds(first) / seconds(second) for _ in range(n)])), 3)


class Batches:
    """Eight generations, in turn and together: one token in every step, from the first one on."""

    timeout = 300

    def setup(self):
        import rml

        self.model = rml.load(model_file(), n_ctx=4096, prefix_cache=False)
        self.prompts = [[5 + i] for i in range(8)]
        alone = [self.model.generate(ids, max_tokens=4, **OPTIONS) for ids in self.prompts]
        together = self.model.generate(self.prompts, max_tokens=4, **OPTIONS)
        if [c.token_ids for c in together] != [c.token_ids for c in alone]:
            raise AssertionError("eight together are not what they are in turn")

    def teardown(self):
        self.model.close()

    def together(self):
        self.model.generate(self.prompts, max_tokens=N_TOKENS, **OPTIONS)

    def in_turn(self):
        for ids in self.prompts:
            self.model.generate(ids, max_tokens=N_TOKENS, **OPTIONS)

    def read(self, ids):
        for _ in self.model.stream(ids, max_tokens=N_TOKENS, **OPTIONS):
            pass

    def in_threads(self):
        threads = [threading.Thread(target=self.read, args=(ids,)) for ids in self.prompts]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def zipped(self):
        streams = [self.model.stream(ids, max_tokens=N_TOKENS, **OPTIONS) for ids in self.prompts]
        while any([next(stream, None) for stream in streams]):  # noqa: C419 - each of them
            pass

    def track_in_turn(self):
        return ratio(self.in_turn, self.together)

    track_in_turn.unit = "time of eight turns, in that of eight together"

    def track_threads(self):
        return ratio(self.zipped, self.in_threads)

    track_threads.unit = "time of one thread that reads eight streams, in that of eight threads"

    def track_threads_beside_a_list(self):
        return ratio(self.in_threads, self.together)

    track_threads_beside_a_list.unit = "time of eight threads, in that of one generate of eight"


class Beginnings:
    """64 questions on one text of 1500 tokens, with what they have in common evaluated once.

    Without that two of them are asked, and count as 64.
    """

    timeout = 600

    def setup(self):
        import rml

        self.model = rml.load(model_file(), n_ctx=4096)
        text = random_text(self.model, 1500)
        self.prompts = [[*text, 5 + i, 9] for i in range(64)]

    def teardown(self):
        self.model.close()

    def in_turn(self, prompts, **options):
        return [self.model.generate(ids, max_tokens=4, **OPTIONS, **options) for ids in prompts]

    def at_once(self, prompts, **options):
        return self.model.generate(prompts, max_tokens=4, **OPTIONS, **options)

    def gain(self, ask):
        replies = []
        # The first of the warm ones is cold: it evaluates the text.
        warm = seconds(lambda: replies.extend(ask(self.prompts)))
        cold = seconds(lambda: replies.extend(ask(self.prompts[:2], prefix_cache=False)))
        if [r.usage.cached_tokens for r in replies] != [0] + [1488] * 63 + [0, 0]:
            raise AssertionError("another part of the text is evaluated again than a piece of it")
        if [r.token_ids for r in replies[:2]] != [r.token_ids for r in replies[64:]]:
            raise AssertionError("what is shared changes an answer")
        return round(32 * cold / warm, 2)

    def track_questions(self):
        return self.gain(self.in_turn)

    track_questions.unit = "time of 64 questions in turn without, in that with common beginnings"

    def track_questions_at_once(self):
        return self.gain(self.at_once)

    track_questions_at_once.unit = "time of 64 questions at once without, in that with them"


class Company:
    """What a prompt of 4000 tokens means for others that are there while it is evaluated."""

    timeout = 300

    def setup_cache(self):
        import rml

        with rml.load(model_file(), n_ctx=8192, prefix_cache=False) as model:
            model.generate(random_text(model, 600), max_tokens=4, **OPTIONS)
            longest, usual, meanwhile = Beside(model).gaps()
            return {
                "longest": round(longest / usual, 2),
                "meanwhile": round(meanwhile / usual, 2),
                "first": Beside(model).steps_to_a_token(),
            }

    def track_first_token(self, found):
        return found["first"]

    track_first_token.unit = "steps to the first token of a short request, the most of several"

    def track_longest_gap(self, found):
        return found["longest"]

    track_longest_gap.unit = "longest gap of a running stream, in its median step without a prompt"

    def track_usual_gap(self, found):
        return found["meanwhile"]

    track_usual_gap.unit = "median gap of a running stream, in its median step without a prompt"


class Beside:
    """A long prompt, and the steps that are computed meanwhile."""

    def __init__(self, model):
        self.model, self.prompt = model, random_text(model, 4000)
        self.n_rows, self.n_ended = [], 0  # of the steps that began; how many have ended
        evaluator = model._sessions.engine.store(model.kv_type).evaluator
        begin, run = evaluator.begin, evaluator.run

        def noted_begin(n_rows):
            self.n_rows.append(n_rows)
            return begin(n_rows)

        def noted_run():
            run()
            self.n_ended += 1

        evaluator.begin, evaluator.run = noted_begin, noted_run

    @contextmanager
    def under_way(self):
        """The prompt in another thread, from its first step to its end."""
        options = {"max_tokens": 1, **OPTIONS}
        thread = threading.Thread(target=self.model.generate, args=(self.prompt,), kwargs=options)
        thread.start()
        while max(self.n_rows, default=0) < 10:
            time.sleep(1e-4)
        try:
            yield thread
        finally:
            thread.join()

    def steps_to_a_token(self):
        """The most that ended between a call and its first token, that under way included."""
        most = 0
        with self.under_way() as prompt:
            while prompt.is_alive():
                before = self.n_ended
                self.model.generate([5, 6, 7], max_tokens=1, **OPTIONS)
                most = max(most, self.n_ended - before)
        return most

    def gaps(self):
        """Seconds between tokens of a stream: at most; the median without the prompt, and with."""
        times = []
        with self.model.stream([5], max_tokens=4000, **OPTIONS) as stream:
            for _ in range(41):
                next(stream)
                times.append(time.perf_counter())
            with self.under_way() as prompt:
                while prompt.is_alive():
                    next(stream)
                    times.append(time.perf_counter())
        gaps = np.diff(times)
        return float(gaps[40:].max()), float(np.median(gaps[8:40])), float(np.median(gaps[40:]))


class Steps:
    """What a step of sixteen sequences costs in Python, besides choosing their tokens.

    The sequences share beginnings. All begin a new page in the same step, every sixteenth, so
    figures are means of sixteen steps.
    """

    timeout = 300

    def setup(self):
        import rml

        self.model = rml.load(TOY, n_ctx=4096)

    def teardown(self):
        self.model.close()

    def outside(self, n_steps, n_computed):
        """Seconds between two runs of the plan, without those in which a token is chosen.

        The first `n_computed` steps are computed; then the logits stay as they are.
        """
        from rml.llm.plan import Plan
        from rml.sampling.sampler import Sampler

        run, sample = Plan.run, Sampler.sample
        found, ended, choosing = [], None, 0.0

        def timed_run(plan):
            nonlocal ended, choosing
            if ended is not None:
                found.append(time.perf_counter() - ended - choosing)
            choosing = 0.0
            try:
                return run(plan) if len(found) < n_computed else True
            finally:
                ended = time.perf_counter()

        def timed_sample(*args, **kwargs):
            nonlocal choosing
            start = time.perf_counter()
            try:
                return sample(*args, **kwargs)
            finally:
                choosing += time.perf_counter() - start

        text = random_text(self.model, 40)
        prompts = [[*text, 5 + i] for i in range(16)]
        Plan.run, Sampler.sample = timed_run, timed_sample
        try:
            self.model.generate(prompts, max_tokens=n_steps, **OPTIONS)
        finally:
            Plan.run, Sampler.sample = run, sample
        n = len(found) // 16
        return np.reshape(found[-16 * n :], (n, 16)).mean(axis=1)

    def track_outside_the_plan(self):
        return round(1e6 * float(np.median(self.outside(400, 400))), 1)

    track_outside_the_plan.unit = "microseconds a step, without the plan and choosing tokens"

    def track_late(self):
        # Where steps are computed, what Python works with leaves the caches the sooner the more
        # keys they read; that is no matter of how much there is to do.
        times = self.outside(3600, 32)
        return round(float(np.median(times[-40:]) / np.median(times[5:45])), 3)

    track_late.unit = "Python time of steps at 3300 tokens, in that of steps at 400"

    def track_finding(self):
        text = random_text(self.model, 3200)
        self.model.generate(text, max_tokens=1, **OPTIONS)
        store = self.model._sessions.engine.store(self.model.kv_type)

        def find(n):
            for _ in range(3200 // n):
                sequence = store.new()
                if sequence.adopt(text[:n]) != n:
                    raise AssertionError("a beginning is not found")
                sequence.release()

        return ratio(lambda: find(3200), lambda: find(320), n=15)

    track_finding.unit = "time to find a beginning of 3200 tokens, in that of ten of 320"
