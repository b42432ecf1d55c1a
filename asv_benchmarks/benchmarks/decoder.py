"""A whole step of a model with the layer shape of TinyLlama 1.1B: two layers, 8192 ids.

Weights are random: its text means nothing, its time does. About 121 million weights are read a
step (129 MB as Q8_0, 68 MB as Q4_0).
"""

from pathlib import Path

import numpy as np

from benchmarks.common import THREADS, n_threads_of, seconds_per_call
from benchmarks.synthetic import write_model

SHAPE = {
    "n_layers": 2,
    "d_model": 2048,
    "d_ffn": 5632,
    "n_heads": 32,
    "n_kv_heads": 4,
    "n_vocab": 8192,
}
CONTEXT = 128
FORMATS = ["Q8_0", "Q4_0"]


class DecoderStep:
    """One token after a prompt of 128, and that prompt."""

    params = [FORMATS, ["int8x2", "int8"], THREADS]
    param_names = ["format", "compute", "threads"]
    timeout = 300

    def setup_cache(self):
        for format_name in FORMATS:
            write_model(Path(f"{format_name}.gguf"), format_name, **SHAPE)

    def setup(self, format_name, compute, threads):
        from rml.engine.sessions import open_session
        from rml.files import open_checkpoint
        from rml.llm.decoder import DecoderLM

        self.checkpoint = open_checkpoint(Path(f"{format_name}.gguf"))
        n_threads = n_threads_of(threads)
        self.decoder = DecoderLM(self.checkpoint, compute=compute, n_threads=n_threads)
        self.session = open_session(self.decoder, 2 * CONTEXT)
        self.prompt = np.random.default_rng(0).integers(0, SHAPE["n_vocab"], CONTEXT)
        self.out = np.empty(SHAPE["n_vocab"], np.float32)
        self.prefill()
        self.decode()
        self.session.truncate(CONTEXT - 1)
        by_step = self.session.forward(self.prompt[-1:]).copy()
        self.session.truncate(0)
        whole = self.session.forward(self.prompt)
        if not np.isfinite(whole).all() or not np.array_equal(by_step, whole):
            raise AssertionError("a prompt at once and token by token do not give the same bits")

    def teardown(self, *params):
        self.session = self.decoder = None
        self.checkpoint.close()

    def prefill(self):
        self.session.truncate(0)
        self.session.forward(self.prompt, out=self.out)

    def decode(self):
        self.session.truncate(CONTEXT)
        self.session.forward([1], out=self.out)

    def time_decode(self, *params):
        self.decode()

    def track_decode(self, *params):
        return round(1.0 / seconds_per_call(self.decode), 2)

    track_decode.unit = "tokens/s, batch 1, context 128, prefill excluded"

    def track_prefill(self, *params):
        return round(CONTEXT / seconds_per_call(self.prefill), 1)

    track_prefill.unit = "tokens/s of a prompt of 128, from an empty cache"
