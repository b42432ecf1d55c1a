"""Everything a model computes, twice: as always, and where every floating-point event raises.

Run by test_floating_point in a process of its own for each kind of kernels; prints what differs.
"""

import itertools
import sys
import warnings

import numpy as np

import rml
from rml.sampling.logprobs import token_logprob
from rml.sampling.sampler import Sampler
from rml.sampling.settings import SamplingSettings

FAR = dict.fromkeys(range(200), -1e6) | {5: 1e6, 7: -np.inf}
SETTINGS = [
    *({"temperature": t} for t in (0.0, 1e-6, 1e-5, 0.05, 1.0, 100.0, 1e30)),
    *({"temperature": t, "top_k": 0, "top_p": 1.0, "min_p": 0.0} for t in (1e-6, 0.05, 1.0, 1e30)),
    {"top_k": 0, "top_p": 0.5}, {"top_k": 0, "top_p": 1e-300}, {"top_p": 1e-300},
    {"top_k": 0, "min_p": 0.3}, {"top_k": 0, "min_p": 1e-300}, {"min_p": 1.0},
    {"top_k": 0, "typical_p": 0.5}, {"typical_p": 0.0}, {"typical_p": 0.9, "logit_bias": FAR},
    {"top_k": 0, "top_n_sigma": 1.0}, {"top_n_sigma": 1e-30}, {"top_n_sigma": 1000.0, "top_k": 0},
    {"repeat_penalty": 1000.0}, {"repeat_penalty": 1e-30, "top_k": 0},
    {"presence_penalty": 100.0, "frequency_penalty": -100.0},
    {"dry_multiplier": 100.0, "dry_base": 100.0, "dry_allowed_length": 1},
    {"xtc_probability": 1.0, "xtc_threshold": 0.0, "top_k": 0},
    {"xtc_probability": 1.0, "xtc_threshold": 0.1, "logit_bias": FAR},
    {"mirostat": 2}, {"mirostat": 2, "mirostat_tau": 100.0, "temperature": 0.01},
    {"mirostat": 2, "mirostat_tau": 0.0, "mirostat_eta": 1.0}, {"mirostat": 2, "logit_bias": FAR},
    {"dynatemp_range": 0.5}, {"dynatemp_range": 100.0, "dynatemp_exponent": 100.0, "top_k": 0},
    {"logit_bias": FAR, "top_k": 0, "top_p": 0.9}, {"suppress_tokens": [1, 2]},
    {"samplers": "llama.cpp", "top_k": 0, "typical_p": 0.5, "top_n_sigma": 1.0},
]  # fmt: skip
CALLS = [
    {"logprobs": 5}, {"echo": True, "logprobs": True}, {"ignore_eos": True},
    {"mask": np.arange(288) % 2 == 0, "typical_p": 0.9, "top_k": 0},
    {"logits_processor": lambda _, logits: logits.astype(np.float64) * 1e39},
]  # fmt: skip


def logits():
    """Vectors of every size that float32 has, with ties, gaps and nothing but minus infinity."""
    rng = np.random.default_rng(0)
    with np.errstate(all="ignore"):
        for scale, shift in itertools.product((1e-45, 1e-30, 1.0, 30.0, 1e10, 1e38), (0.0, 3e37)):
            values = np.clip(rng.standard_normal(300) * scale + shift, -3.4e38, 3.4e38)
            yield values.astype(np.float32)
            yield np.where(np.arange(300) % 3 == 0, -np.inf, values).astype(np.float32)
    yield np.linspace(0, -110, 300, dtype=np.float32)  # probabilities down to no normal number
    yield np.linspace(0, -3e4, 6000, dtype=np.float32)
    yield np.zeros(300, np.float32)
    yield np.where(np.arange(300) == 5, np.float32(3e38), np.float32(-3e38))


def attempt(function):
    """What a call returns, or the error of rml that it raises."""
    try:
        return function()
    except rml.RmlError as error:
        return str(error)


def sampled(settings, values):
    sampler = Sampler(SamplingSettings(**settings), 1, token_bytes=lambda _: b"a")
    sampler.accept([1, 2, 3, 1, 2] * 9)
    ids = []
    for _ in range(3):
        ids.append(sampler.sample(values))
        sampler.accept(ids[-1:])
    return ids


def computed(path):
    """Yield a name and a result for everything there is."""
    for (n, values), settings in itertools.product(enumerate(logits()), SETTINGS):
        yield f"{settings} {n}", attempt(lambda v=values, s=settings: sampled(s, v))
    for n, values in enumerate(logits()):
        yield f"logprob {n}", str(attempt(lambda v=values: token_logprob(v, 5, 3)))
    for compute, kv_type in (("int8x2", "f16"), ("int8", "int8"), ("f32", "f32")):
        with rml.load(path, n_threads=1, compute=compute, kv_type=kv_type) as model:
            for options in [*SETTINGS, *CALLS]:
                given = {"max_tokens": 5, "seed": 3, **options}
                result = attempt(lambda m=model, g=given: m.generate([9, 8, 7, 9, 8], **g))
                yield f"{compute} {options}", getattr(result, "token_ids", result)
            yield "score", str(model.score("the cat sat on the mat"))
            yield "mean", model.embed(["the cat", "a"]).tolist()
            yield "last", model.embed("the", pooling="last", normalize=False).tolist()
    rng = np.random.default_rng(1)
    with rml.open_checkpoint(path) as checkpoint:
        for tensor in checkpoint.tensors.values():
            yield tensor.name, tensor.numpy().tobytes()
    for kind, size in (("Q4_0", 18), ("Q4_K", 144), ("Q6_K", 210), ("F16", 2), ("BF16", 2)):
        data = rng.integers(0, 256, 64 * size, np.uint8)
        yield kind, rml.dequantize(data, kind).tobytes()


def main():
    path = sys.argv[1]
    with np.errstate(all="ignore"):
        expected = dict(computed(path))
    warnings.simplefilter("error")
    np.seterr(all="raise")
    found = dict(computed(path))
    assert expected.keys() == found.keys()
    print(len(found), rml.info()["backend"])
    for name, value in found.items():
        if value != expected[name]:
            print("differs:", name)


main()
