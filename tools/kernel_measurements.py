"""What `kernel_table` shows: kernels and models timed, a line of a table for each.

Times come from plans of operations (`rml.llm.plan`), as in a step of a model, so the work that a
kernel does and its limit are counted where everybody else counts them, too.
"""

import mmap
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import rml
from rml import _kernels
from rml._kernels.pages import KV_TYPES, PAGE_SIZE, Pages, PageTable
from rml._kernels.step import Step
from rml._kernels.threads import resolve_threads
from rml.engine.sessions import open_session
from rml.limits import Limits, cache_bytes, measure
from rml.llm.decoder import DecoderLM
from rml.llm.plan import Plan
from rml.llm.profile import Profile, Timing

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "asv_benchmarks"))

from benchmarks.synthetic import PLAIN, Matrix, random_matrix

ROWS, COLS = 5632, 2048
N_EXPERTS, N_USED, D_EXPERT = 8, 2, 1024
HEADS, KV_HEADS, HEAD_DIM, N_VOCAB = 32, 8, 128, 128_256
LAYERS = 8  # of a cache, so that each attention reads keys and values of its own
PREFILL = 512
MOST_MATRICES = 12
COMPUTES = ("int8x2", "int8", "f32")
PRODUCTS = ("matmul_many", "matmul_glu", "accumulate", "mix_experts")


class Pool:
    """Memory for cold matrices, in pages as small as those of a mapped file.

    Three times the last-level cache, a gigabyte at most. Matrices are in the first half, so that
    after a read of everything they are in no cache.
    """

    def __init__(self, n_threads: int, *, quick: bool) -> None:
        n_bytes = min(max(3 * (cache_bytes() or 64 << 20), 384 << 20), 1 << 30)
        memory = mmap.mmap(-1, 384 << 20 if quick else n_bytes)
        if hasattr(mmap, "MADV_NOHUGEPAGE"):
            memory.madvise(mmap.MADV_NOHUGEPAGE)
        self.data = np.frombuffer(memory, np.uint8)
        self.data[:: mmap.PAGESIZE] = 1  # now it is there
        self._n_threads = n_threads

    def evict(self) -> None:
        """Take everything else out of the caches."""
        _kernels.TWINS.read_words(self.data, n_threads=self._n_threads)

    def copies(self, matrix: Matrix, most: int = MOST_MATRICES) -> list[Matrix]:
        """Make as many copies of a matrix as there is room for, at most `most`."""
        size = matrix.data.nbytes
        found = []
        for i in range(min(len(self.data) // 2 // size, most)):
            data = self.data[i * size : (i + 1) * size]
            data[:] = matrix.data
            found.append(Matrix(matrix.type, matrix.rows, matrix.cols, data))
        return found


@dataclass(frozen=True)
class Settings:
    """What a run measures, how thoroughly, and what the machine can do."""

    formats: tuple[str, ...]
    n_threads: int
    limits: Limits
    pool: Pool
    repeats: int
    lengths: tuple[int, ...]  # of caches
    depth: int = 64  # tokens before a step of a model

    @classmethod
    def measured(cls, formats: tuple[str, ...], threads: int | None, *, quick: bool) -> "Settings":
        """Measure the limits, and prepare."""
        n_threads = resolve_threads(threads)
        lengths = (PREFILL,) if quick else (PREFILL, 4096)
        limits, pool = measure(n_threads), Pool(n_threads, quick=quick)
        return cls(formats, n_threads, limits, pool, 1 if quick else 3, lengths)


def rate(value: float, share: float | None) -> str:
    """Render a rate, and the share of the limit that it is."""
    digits = 0 if value >= 99.5 else 1 if value >= 9.95 else 2
    return f"{value:.{digits}f} ({share:.0%})"


# ---- products ----


def computes_of(format_name: str) -> tuple[str, ...]:
    """Return the ways in which a format is multiplied."""
    return ("f32",) if format_name in PLAIN else COMPUTES


def plan_of(
    kernel: str, matrices: list[Matrix], n_tokens: int, compute: str, n_threads: int
) -> Plan:
    """Record an operation for each matrix, or for as many as it needs."""
    rng = np.random.default_rng(0)
    plan = Plan(n_threads)
    options = {"compute": compute, "scratch": _kernels.Scratch()}
    rows, cols = matrices[0].rows, matrices[0].cols
    x = rng.standard_normal((n_tokens, cols), np.float32)
    out = np.zeros((n_tokens, rows), np.float32)
    if kernel == "mix_experts":
        n = len(matrices) // 3
        parts = [matrices[:n], matrices[n : 2 * n], matrices[2 * n : 3 * n]]
        parts[2] = [Matrix(m.type, cols, rows, m.data) for m in parts[2]]
        weights = np.full((n_tokens, N_USED), 1 / N_USED, np.float32)
        result = np.zeros((n_tokens, cols), np.float32)
        ids = np.arange(n_tokens * N_USED * n, dtype=np.int32) % n
        for chosen in ids.reshape(-1, n_tokens, N_USED)[: n // N_USED if n_tokens == 1 else 1]:
            plan.record(kernel, "", x, *parts, chosen.copy(), weights, result, **options)
    elif kernel == "matmul_glu":
        for gate, up in zip(matrices[::2], matrices[1::2], strict=False):
            plan.record(kernel, "", x, gate, up, out, **options)
    elif kernel == "accumulate":
        for matrix in matrices:
            plan.record(kernel, "", x, matrix, out, **options)
    else:
        for matrix in matrices:
            plan.record(kernel, "", x, [matrix], [out], **options)
    return plan


def decode(settings: Settings, plan: Plan) -> Timing:
    """Time the operations of a plan, cold; return the median one of their best runs."""
    best: list[Timing] = []
    for _ in range(settings.repeats):
        settings.pool.evict()
        run = plan.profile(repeats=1, limits=settings.limits)
        best = [min(pair, key=lambda t: t.seconds) for pair in zip(best or run, run, strict=True)]
    return sorted(best, key=lambda t: t.seconds)[len(best) // 2]


def prefill(settings: Settings, plan: Plan) -> Timing:
    """Time the first operation of a plan; return its best run."""
    single = Plan(plan.n_threads)
    single.operations = plan.operations[:1]
    return single.profile(settings.repeats, settings.limits)[0]


def matrices_for(settings: Settings, kernel: str, format_name: str) -> list[Matrix]:
    """Fill the pool with matrices of a kernel's shape."""
    rng = np.random.default_rng(0)
    if kernel != "mix_experts":
        return settings.pool.copies(random_matrix(rng, format_name, ROWS, COLS))
    n = 3 * N_EXPERTS
    found = settings.pool.copies(random_matrix(rng, format_name, D_EXPERT, COLS), n)
    return (found * n)[:n]  # where there is too little room, some matrices serve twice


def product_rows(settings: Settings, kernel: str) -> Iterator[list[str]]:
    """Make a line for each format."""
    for format_name in settings.formats:
        matrices = matrices_for(settings, kernel, format_name)
        bits = 8 * matrices[0].data.nbytes / (matrices[0].rows * matrices[0].cols)
        reading, multiplying = [], []
        for compute in COMPUTES:
            if compute not in computes_of(format_name):
                reading.append("")
                multiplying.append("")
                continue
            step = decode(settings, plan_of(kernel, matrices, 1, compute, settings.n_threads))
            plan = plan_of(kernel, matrices, PREFILL, compute, settings.n_threads)
            prompt = prefill(settings, plan)
            reading.append(rate(step.gigabytes_per_second, step.share))
            multiplying.append(rate(prompt.gigaproducts_per_second, prompt.share))
        yield [format_name, f"{bits:.2f}", *reading, *multiplying]


def copy_rows(settings: Settings) -> Iterator[list[str]]:
    """Blocks made float32: whole matrices, and the rows of 512 tokens."""
    for format_name in settings.formats:
        matrices = matrices_for(settings, "dequantize", format_name)
        values = np.zeros(ROWS * COLS, np.float32)
        values += 1  # its pages are there
        seconds = []
        for matrix in matrices[: 2 * settings.repeats]:
            settings.pool.evict()
            start = time.perf_counter()
            _kernels.dequantize(matrix.data, format_name, values, n_threads=settings.n_threads)
            seconds.append(time.perf_counter() - start)
        n_bytes, best = matrices[0].data.nbytes, float(np.median(seconds))
        moved = n_bytes + values.nbytes  # read, and written
        share = settings.limits.seconds(moved, {}) / best
        plan, rng = Plan(settings.n_threads), np.random.default_rng(0)
        rows = np.empty((PREFILL, COLS), np.float32)
        for matrix in matrices:
            plan.record("embed", "", rng.integers(0, ROWS, PREFILL, np.int32), matrix, rows)
        embed = decode(settings, plan)
        yield [
            format_name,
            rate(n_bytes / best / 1e9, share),
            f"{moved / best / 1e9:.1f}",
            rate(embed.gigabytes_per_second, embed.share),
        ]


# ---- attention ----


def attention_plan(pages: Pages, n_ctx: int, n_tokens: int, n_threads: int) -> Plan:
    """Attention of the last `n_tokens` of `n_ctx` positions, in every layer."""
    rng = np.random.default_rng(1)
    q = rng.standard_normal((n_tokens, HEADS, HEAD_DIM), np.float32)
    plan, out, scratch = Plan(n_threads), np.empty_like(q), _kernels.Scratch()
    step = one_sequence(n_tokens, n_ctx - n_tokens)
    for layer in range(pages.n_layers):
        plan.record(
            "attend", "", q, pages, step, out,
            layer=layer, scale=HEAD_DIM**-0.5, scratch=scratch,
        )  # fmt: skip
    return plan


def one_sequence(n_tokens: int, position: int) -> Step:
    """Make a step of tokens of one sequence, whose pages follow each other."""
    step = Step(n_tokens)
    table = PageTable(range(-(-(position + n_tokens) // PAGE_SIZE)))
    step.add([0] * n_tokens, position, [table])
    return step


def empty_pages(n_layers: int, n_ctx: int, kv_type: str) -> Pages:
    """Have room for so many positions."""
    n_pages = -(-n_ctx // PAGE_SIZE)
    slab_pages = 1 << (n_pages - 1).bit_length()
    pages = Pages(n_layers, KV_HEADS, HEAD_DIM, kv_type, n_pages=n_pages, slab_pages=slab_pages)
    pages.reserve(0)
    return pages


def full_pages(n_ctx: int, kv_type: str) -> Pages:
    """Make pages in which every position is written."""
    rng = np.random.default_rng(0)
    k, v = (rng.standard_normal((n_ctx, KV_HEADS, HEAD_DIM), np.float32) for _ in range(2))
    pages = empty_pages(LAYERS, n_ctx, kv_type)
    for layer in range(LAYERS):
        _kernels.store_kv(k, v, pages, one_sequence(n_ctx, 0), layer=layer)
    return pages


def attention_rows(settings: Settings) -> Iterator[list[str]]:
    """Make a line for each type and length of a cache."""
    for n_ctx in settings.lengths:
        for kv_type in KV_TYPES:
            pages, threads = full_pages(n_ctx, kv_type), settings.n_threads
            prompt = prefill(settings, attention_plan(pages, n_ctx, PREFILL, threads))
            step = decode(settings, attention_plan(pages, n_ctx, 1, threads))
            yield [
                f"{kv_type}, {n_ctx} tokens",
                f"{1e3 * step.seconds:.3f}",
                rate(step.gigabytes_per_second, step.share),
                f"{1e3 * prompt.seconds:.2f}",
                rate(prompt.gigaproducts_per_second, prompt.share),
            ]


# ---- kernels without weights ----


def small_plan(n_tokens: int, n_threads: int) -> Plan:
    """Record each kernel without weights once, for a model as wide as the attention above."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((n_tokens, HEADS * HEAD_DIM), np.float32)
    q = x.reshape(n_tokens, HEADS, HEAD_DIM)
    k, v = (rng.standard_normal((n_tokens, KV_HEADS, HEAD_DIM), np.float32) for _ in range(2))
    cos, sin = (np.empty((n_tokens, HEAD_DIM // 2), np.float32) for _ in range(2))
    scores = rng.standard_normal((n_tokens, 64), np.float32)
    ids, weights = np.zeros((n_tokens, 8), np.int32), np.zeros((n_tokens, 8), np.float32)
    pages, step = empty_pages(1, n_tokens, "f16"), one_sequence(n_tokens, 0)
    plan = Plan(n_threads)
    plan.record("rms_norm", "", x, np.ones(x.shape[1], np.float32), x, eps=1e-5)
    plan.record("rope_angles", "", step.positions, 1e4 ** -np.linspace(0, 1, 64), cos, sin)
    plan.record("rotate", "", cos, sin, q, interleaved=False)
    plan.record("store_kv", "", k, v, pages, step, layer=0)
    plan.record("add", "", np.zeros_like(x), x)
    plan.record("route", "", scores, ids, weights, normalize=True)
    return plan


def small_rows(settings: Settings) -> Iterator[list[str]]:
    """Make a line for each kernel."""
    runs = [
        small_plan(n_tokens, settings.n_threads).profile(10 * settings.repeats)
        for n_tokens in (1, PREFILL)
    ]
    for one, many in zip(*runs, strict=True):
        yield [one.operation.kernel, f"{1e6 * one.seconds:.1f}", f"{1e6 * many.seconds:.1f}"]
    yield from vocabulary_rows(settings)


def vocabulary_rows(settings: Settings) -> Iterator[list[str]]:
    """Make a line for each kernel that looks at the logits of a token; there is one at a time."""
    logits = np.random.default_rng(0).standard_normal(N_VOCAB, np.float32)
    ids, top, total = np.zeros(40, np.int64), np.zeros(40, np.float32), np.zeros(2, np.float64)
    options = {"temperature": 0.8, "top_p": 0.95, "min_p": 0.05, "chance": 0.5}
    n = settings.n_threads
    calls = {
        f"largest 40 of {N_VOCAB}": lambda: _kernels.largest(logits, ids, top, n_threads=n),
        f"log_sum_exp of {N_VOCAB}": lambda: _kernels.log_sum_exp(logits, total, n_threads=n),
        "choose of 40": lambda: _kernels.choose(top, ids[:1], **options),
    }
    for name, call in calls.items():
        times = []
        for _ in range(10 * settings.repeats):
            start = time.perf_counter()
            call()
            times.append(time.perf_counter() - start)
        yield [name, f"{1e6 * min(times):.1f}", ""]


# ---- a model ----


def step_rows(settings: Settings, path: Path) -> Iterator[list[str]]:
    """Make a line for one thread, two, four, up to all."""
    counts = [n for n in (1, 2, 4, 8, 16, 32, 64, 128) if n < settings.n_threads]
    with rml.open_checkpoint(path) as checkpoint:
        file = path if path.is_file() else max(path.iterdir(), key=lambda p: p.stat().st_size)
        for n_threads in [*counts, settings.n_threads]:
            limits = measure(n_threads, file)
            for compute in COMPUTES[:2]:
                decoder = DecoderLM(checkpoint, compute=compute, n_threads=n_threads)
                seconds, run = best_step(settings, decoder, limits)
                yield [
                    f"{n_threads}, {compute}",
                    f"{1e3 * seconds:.3f}",
                    f"{1 / seconds:.1f}",
                    f"{sum(t.n_bytes for t in run) / seconds / 1e9:.1f}",
                    f"{limits.gigabytes_per_second:.1f}",
                    f"{(run.limit_seconds or 0.0) / seconds:.0%}",
                    f"{1e3 * (seconds - sum(t.seconds for t in run)):.3f}",
                ]


def best_step(settings: Settings, decoder: DecoderLM, limits: Limits) -> tuple[float, Profile]:
    """Time a step as a whole and by operations, in turn; return the best of both."""
    out = np.empty(decoder.config.n_vocab, np.float32)
    runs, walls = [], []
    with open_session(decoder, settings.depth + 1) as session:
        session.forward([1] * settings.depth, out=out)
        plan = session.plan()
        for _ in range(5 * settings.repeats):
            start = time.perf_counter()
            session.step(1)
            walls.append(time.perf_counter() - start)
            session.truncate(settings.depth)
            runs.append(plan.profile(1, limits))
    return min(walls), min(runs, key=lambda run: run.seconds)


def load_seconds(path: Path, repeats: int) -> float:
    """Time `rml.load`, with the file in the page cache."""
    best = float("inf")
    for _ in range(repeats):
        start = time.perf_counter()
        with rml.load(path):
            best = min(best, time.perf_counter() - start)
    return best
