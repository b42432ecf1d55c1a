"""Many requests at once, as ratios in one run: of SmolLM2 where it is there, else of a toy.

``RML_MODELS_DIR`` names the folder of ``smollm2.gguf``.
"""

import os
import threading
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
TOY = ROOT / "tests" / "fixtures" / "llama" / "model-q8_0.gguf"
OPTIONS = {"temperature": 0, "ignore_eos": True}
N_TOKENS = 24


def model_file():
    found = Path(os.environ.get("RML_MODELS_DIR", "no-such-folder")) / "smollm2.gguf"
    return found if found.exists() else TOY


def seconds(call):
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def ratio(first, second, n=3):
    """Median of the time of `first` in units of that of `second`, in turn."""
    second()
    return round(float(np.median([seconds(first) / seconds(second) for _ in range(n)])), 3)


class Batches:
    """Eight generations, in turn and together."""

    timeout = 300

    def setup(self):
        import rml

        self.model = rml.load(model_file(), n_ctx=4096, prefix_cache=False)
        self.prompts = [[5 + i, 6, 7] for i in range(8)]

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


class Beginnings:
    """Questions on one text of 1500 tokens, with what they have in common evaluated once."""

    timeout = 600

    def setup(self):
        import rml

        self.model = rml.load(model_file(), n_ctx=4096)
        n = min(280, self.model.config.n_vocab)
        self.text = np.random.default_rng(0).integers(3, n, 1500).tolist()

    def teardown(self):
        self.model.close()

    def ask(self, questions, **options):
        for i in questions:
            self.model.generate([*self.text, 5 + i, 9], max_tokens=4, **OPTIONS, **options)

    def track_questions(self):
        warm = seconds(lambda: self.ask(range(64)))  # the first one is cold
        cold = seconds(lambda: self.ask(range(2), prefix_cache=False)) * 32
        return round(cold / warm, 2)

    track_questions.unit = "time of 64 questions without, in that with common beginnings"

    def track_questions_at_once(self):
        prompts = [[*self.text, 5 + i, 9] for i in range(64)]
        warm = seconds(lambda: self.model.generate(prompts, max_tokens=4, **OPTIONS))
        cold = seconds(lambda: self.ask(range(2), prefix_cache=False)) * 32
        return round(cold / warm, 2)

    track_questions_at_once.unit = "time of 64 questions without, in that of all at once with"


class Steps:
    """What a step of sixteen sequences costs in Python."""

    def setup(self):
        import rml

        self.model = rml.load(TOY, n_ctx=2048, prefix_cache=False)

    def teardown(self):
        self.model.close()

    def track_outside_the_plan(self):
        from rml.llm.plan import Plan

        run, inside, n = Plan.run, 0.0, 0

        def timed(plan):
            nonlocal inside, n
            start = time.perf_counter()
            try:
                return run(plan)
            finally:
                inside += time.perf_counter() - start
                n += 1

        prompts = [[5 + i, 6, 7] for i in range(16)]
        Plan.run = timed
        try:
            whole = seconds(lambda: self.model.generate(prompts, max_tokens=200, **OPTIONS))
        finally:
            Plan.run = run
        return round(1e6 * (whole - inside) / n, 1)

    track_outside_the_plan.unit = "microseconds a step, choosing sixteen tokens included"
