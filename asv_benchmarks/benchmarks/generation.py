"""What a token costs besides the model's step: choosing it, making text of it, handing it on."""

from types import SimpleNamespace

import numpy as np

from benchmarks.common import seconds_per_call

SETTINGS = {
    "greedy": {"temperature": 0},
    "default": {},
    "penalties": {"repeat_penalty": 1.1, "presence_penalty": 0.1},
    "dry": {"dry_multiplier": 0.8},
    "top-p alone": {"top_k": 0, "min_p": 0},
    "llama.cpp": {"samplers": "llama.cpp"},
    "mirostat": {"mirostat": 2},
    "no end token": {"logit_bias": {2: float("-inf")}},
}
TOKENS = 200


def logits_of(n_vocab):
    return (3 * np.random.default_rng(0).standard_normal(n_vocab)).astype(np.float32)


class Sampling:
    """One token out of a vocabulary, with a text of 1000 tokens behind it."""

    params = [[32_000, 262_144], list(SETTINGS)]
    param_names = ["n_vocab", "settings"]

    def setup(self, n_vocab, settings):
        from rml import Sampler, SamplingSettings

        self.logits = logits_of(n_vocab)
        said = np.random.default_rng(1).integers(0, n_vocab, 1000).tolist()
        self.sampler = Sampler(
            SamplingSettings(**SETTINGS[settings]), 1, token_bytes=lambda token: b"x"
        )
        self.sampler.accept(said)
        if settings == "greedy" and self.sampler.sample(self.logits) != self.logits.argmax():
            raise AssertionError("greedy is not the largest logit")

    def time_sample(self, *params):
        self.sampler.sample(self.logits)


class _Evaluator:
    """Takes no time: every step gives the same logits."""

    def __init__(self, logits):
        from rml import _kernels

        self.abort = np.zeros(1, np.int32)
        self.logits = logits[None]
        self.step = _kernels.Step(512)

    def begin(self, n_rows):
        self.step.clear()
        return self.step

    def run(self):
        pass


class _Decoder:
    """What stands for a model."""

    def __init__(self, n_vocab):
        from rml.llm.layers import LayerGroup

        self.config = SimpleNamespace(n_vocab=n_vocab, d_model=8)
        self.groups = (LayerGroup((0,), 1, 2),)
        self.logits = logits_of(n_vocab)

    def evaluator(self, pages):
        return _Evaluator(self.logits)


class Overhead:
    """A generation with a decoder that takes no time: everything else of a call and of a token."""

    params = [list(SETTINGS)]
    param_names = ["settings"]

    def setup(self, settings):
        from rml.engine.engine import Engine
        from rml.engine.sessions import Sessions
        from rml.generation.prompts import Prompt
        from rml.generation.request import Request
        from rml.generation.stream import Stream
        from rml.sampling.settings import SamplingSettings

        engine = Engine(_Decoder(32_000), kv_memory=1 << 24)
        pool = Sessions(engine, SimpleNamespace(path="none"), n_ctx=4096, kv_type="f16")
        tokenizer = SimpleNamespace(
            n_vocab=32_000,
            token_bytes=lambda token: b"x",
            token_id=lambda text: None,
            stream_decoder=lambda previous: SimpleNamespace(
                decode=lambda ids: "x" * len(ids), flush=lambda: ""
            ),
        )

        def generate(n):
            options = {**SETTINGS[settings], "max_tokens": n, "seed": 1}
            return Stream(
                Prompt([1, 2, 3]),
                Request.of(options, SamplingSettings()),
                tokenizer,
                sessions=pool,
                stop_ids=(),
            ).result()

        if generate(5).text != "xxxxx":
            raise AssertionError("a generation of five tokens is no text of five")
        self.generate = generate

    def track_call(self, settings):
        return round(1e6 * seconds_per_call(lambda: self.generate(0)), 1)

    track_call.unit = "microseconds a call, besides the model"

    def track_token(self, settings):
        call = seconds_per_call(lambda: self.generate(0))
        whole = seconds_per_call(lambda: self.generate(TOKENS))
        return round(1e6 * (whole - call) / TOKENS, 1)

    track_token.unit = "microseconds a token, besides the model, vocabulary of 32000"
