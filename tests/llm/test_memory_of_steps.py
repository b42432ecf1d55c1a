"""What the bill says that steps work with is what they really hold, to the byte."""

from pathlib import Path

import numpy as np
import pytest

from rml import _kernels
from rml._kernels.pages import PAGE_SIZE, Pages, PageTable
from rml.files import open_checkpoint
from rml.llm.config import ModelConfig
from rml.llm.decoder import DecoderLM
from rml.llm.memory import MemoryBill, Steps
from rml.llm.weight_source import WeightSource

FIXTURES = Path(__file__).resolve().parent.parent / "fixtures"
PURE = _kernels.TWINS is None
SPAN = 256  # keys of which attention keeps a result for each of few rows, 8 at most


class Running:
    """An evaluator of an open model, with pages for sequences of so many positions."""

    def __init__(self, checkpoint, n_ctx, n_batch, n_sequences=1, **options):
        self.config = ModelConfig.from_checkpoint(checkpoint)
        self.decoder = DecoderLM(checkpoint, config=self.config, **options)
        self.n_ctx, self.n_batch = n_ctx, n_batch
        entries = -(-n_ctx // PAGE_SIZE)
        n_pages = n_sequences * entries
        (group,) = self.decoder.groups
        pages = Pages(
            len(group.layers), group.n_kv_heads, group.head_dim, "f16",
            n_pages=n_pages, slab_pages=1 << (n_pages - 1).bit_length(),
        )  # fmt: skip
        pages.reserve(0)
        self.tables = [PageTable(range(i * entries, (i + 1) * entries)) for i in range(n_sequences)]
        self.evaluator = self.decoder.evaluator([pages])
        self.steps = Steps(
            n_sequences=n_sequences,
            compute=self.decoder.compute,
            n_threads=self.decoder.n_threads,
            formats=WeightSource(checkpoint, self.config).formats,
        )

    @property
    def held(self):
        return self.evaluator.scratch_bytes

    def bill(self, steps=None):
        found = MemoryBill.of(
            self.config, weights=0, n_ctx=self.n_ctx, kv_type="f16", n_batch=self.n_batch,
            steps=self.steps if steps is None else steps,
        )  # fmt: skip
        return found.scratch

    def step(self, *lengths):
        """Compute rows of some sequences, where most spans are seen, with and without windows."""
        for window in {self.config.window(i) or self.n_ctx for i in range(self.config.n_layers)}:
            step = self.evaluator.begin(sum(lengths))
            for n, table in zip(lengths, self.tables, strict=False):
                step.add([1] * n, self.worst_position(n, window), [table])
            step.want_range(0, min(sum(lengths), len(step.outputs)))
            self.evaluator.run()

    def worst_position(self, n, window):
        def spans(position):
            return (position + n - 1) // SPAN - max(0, position - window + 1) // SPAN

        return max(range(self.n_ctx - n, -1, -1), key=spans)

    def heads(self, *lengths):
        """Ask for logits afterwards, as is done where more are wanted than a step gives."""
        for n in lengths:
            self.step(n)
            out = np.empty((n, self.config.n_vocab), np.float32)
            self.evaluator.logits_of(0, n, out)


def check(running, *steps):
    """Some steps one after the other; `steps` are such that each capacity has its worst."""
    for lengths in steps:
        running.step(*lengths)
    # The records of the heads alone, two operations for each capacity, come when they are needed.
    assert 0 <= running.bill() - running.held < 3 * 4096
    running.heads(*{min(n, running.n_batch, running.n_ctx) for n in (1, 32, 512)})
    assert running.held == running.bill()
    assert running.bill() <= running.bill(
        Steps(n_sequences=running.steps.n_sequences, n_threads=running.steps.n_threads)
    )


MODELS = ("llama/model.gguf", "llama/model-q4_0.gguf", "gemma3_text/hf", "mixtral/model.gguf")


@pytest.mark.parametrize("n_threads", [1, 2])
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("n_ctx", [100, 1300])
def test_one_sequence(name, n_ctx, n_threads):
    with open_checkpoint(FIXTURES / name) as checkpoint:
        running = Running(checkpoint, n_ctx, 70, n_threads=n_threads)
        check(running, [1], [2], [8], [9], [32], [33], [70])


@pytest.mark.parametrize("n_threads", [1, 2])
@pytest.mark.parametrize("name", MODELS)
def test_several_sequences(name, n_threads):
    with open_checkpoint(FIXTURES / name) as checkpoint:
        running = Running(checkpoint, 600, 70, 5, n_threads=n_threads)
        check(
            running, [1], [2], [8] * 4, [8, 8, 8], [32], [8] * 5, [8, 8, 54], [70],
            [8, 8, 8, 8, 38], [8, 8, 8, 46], [8, 62],
        )  # fmt: skip


@pytest.mark.parametrize("compute", ["int8", "f32"])
@pytest.mark.parametrize("name", MODELS)
def test_ways_of_multiplying(name, compute):
    with open_checkpoint(FIXTURES / name) as checkpoint:
        running = Running(checkpoint, 100, 40, n_threads=1, compute=compute)
        check(running, [1], [8], [32], [40])


@pytest.mark.parametrize(("n_ctx", "n_batch"), [(1, 1), (20, 512), (300, 1), (40, 33)])
def test_small_contexts_and_batches(n_ctx, n_batch):
    with open_checkpoint(FIXTURES / MODELS[1]) as checkpoint:
        running = Running(checkpoint, n_ctx, n_batch, n_threads=1)
        most = min(n_ctx, n_batch)
        check(running, *([n] for n in (1, 8, 32, most) if n <= most))


@pytest.mark.parametrize("n_threads", [1, 2])
def test_smollm2(smollm2_path, n_threads):
    n_batch = 34 if PURE else 512
    with open_checkpoint(smollm2_path) as checkpoint:
        running = Running(checkpoint, 2000, n_batch, n_threads=n_threads)
        check(running, [1], [8], [32], [n_batch])
    with open_checkpoint(smollm2_path) as checkpoint:
        running = Running(checkpoint, 600, n_batch, 3, n_threads=n_threads)
        check(running, [1], [8] * 3, [8, 8, 16], [8, 24], [32], [8, 8, n_batch - 16], [n_batch])


def test_the_bill_grows_with_the_context():
    with open_checkpoint(FIXTURES / MODELS[0]) as checkpoint:
        config = ModelConfig.from_checkpoint(checkpoint)
    bills = [
        MemoryBill.of(config, weights=0, n_ctx=n, kv_type="f16", n_batch=64).scratch
        for n in range(1, 900)
    ]
    assert bills == sorted(bills)


def test_a_bill_allocates_nothing_large():
    """It is made to find out whether there is room."""
    import tracemalloc

    with open_checkpoint(FIXTURES / MODELS[0]) as checkpoint:
        config = ModelConfig.from_checkpoint(checkpoint)
    tracemalloc.start()
    try:
        bill = MemoryBill.of(config, weights=0, n_ctx=777, kv_type="f16", n_batch=512)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < bill.scratch / 3
