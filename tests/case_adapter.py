"""The adapter through which the case bank's runner drives rml.

    python CASES/run_cases.py tests/case_adapter.py CASES [kind ...]

Each function imports what it needs, so that this file loads whatever is built, and the runner's
child processes for single files start quickly.
"""

import contextlib


def open_gguf(path):
    """Names and values of the tensors in a GGUF file."""
    return _values(path)


def open_safetensors(path):
    """Names and values of the tensors in a safetensors file or folder."""
    return _values(path)


def _values(path):
    from rml.files import open_checkpoint

    with open_checkpoint(path) as checkpoint:
        return {name: tensor.numpy().tolist() for name, tensor in checkpoint.tensors.items()}


def dequantize(type_name, data):
    """Values of stored blocks."""
    import rml

    return rml.dequantize(data, type_name).tolist()


def sample_probs(probs, last_tokens=None, *, op, **settings):
    """Probabilities that one sampling stage leaves, for logits ln(probs)."""
    import numpy as np

    from rml.sampling import stages
    from rml.sampling.candidates import Candidates
    from rml.sampling.penalties import PhraseLog, Window, penalize, phrase_penalties, subtract

    said = [int(token) for token in last_tokens or ()]
    before = Candidates.of(np.log(np.asarray(probs, np.float32)))

    def penalties(repeat, frequency, presence):
        window = Window(-1)
        window.accept(said)
        return penalize(before, window, repeat=repeat, frequency=frequency, presence=presence)

    def dry(multiplier, base, allowed_length, last_n, breakers):
        # The bank writes a breaker as token ids; here each token's text is its number.
        words = [b"".join(b"%d," % token for token in breaker) for breaker in breakers]
        log = PhraseLog(int(last_n), words, lambda token: b"%d," % token)
        log.accept(said)
        found = phrase_penalties(
            log, multiplier=multiplier, base=base, allowed_length=int(allowed_length)
        )
        return subtract(before, found)

    functions = {
        "temp": lambda temp: stages.temperature(before, temp),
        "temp_ext": lambda temp, delta, exponent: stages.temperature(
            before, temp, dynamic_range=delta, exponent=exponent
        ),
        "top_k": lambda k: stages.top_k(before, int(k)),
        "top_p": lambda p: stages.top_p(before, p),
        "min_p": lambda p: stages.min_p(before, p),
        "typical": lambda p: stages.typical_p(before, p),
        "top_n_sigma": lambda n: stages.top_n_sigma(before, n),
        "xtc": lambda p, t: stages.xtc(before, p, t, chance=0.0),
        "penalties": penalties,
        "dry": dry,
    }
    after = functions[op](**settings)
    return dict(zip(after.ids.tolist(), after.probabilities().tolist(), strict=True))


def stop_filter(chunks, stop):
    """Text that a caller gets, and whether a stop string ended it."""
    from rml.generation.stop import StopFilter

    cut = StopFilter(stop)
    text = "".join([cut.feed(chunk) for chunk in chunks] + [cut.flush()])
    return text, "end" if cut.matched is None else "stop"


def render(template, messages, tools, add_generation_prompt, variables, now):
    """Text of a chat; None means that a variable is not defined in the template."""
    from rml.tokenizers.chat_template import UNSET, ChatTemplate

    variables = {name: value for name, value in variables.items() if name != "messages"}
    return ChatTemplate(template).render(
        messages or [],
        UNSET if tools is None else tools,
        UNSET if add_generation_prompt is None else add_generation_prompt,
        now,
        **variables,
    )


@contextlib.contextmanager
def _session(path):
    import rml

    with rml.load(path, compute="f32", kv_type="f32") as model, model.session() as session:
        yield session


def logits(path, ids):
    """Logits after every token, in the mode that rounds nothing."""
    with _session(path) as session:
        return session.forward(ids, all_logits=True).tolist()


def greedy(path, ids, n):
    """The `n` likeliest tokens after `ids`, one after the other."""
    from rml.sampling.sampler import Sampler
    from rml.sampling.settings import SamplingSettings

    sampler = Sampler(SamplingSettings(temperature=0))
    chosen = []
    with _session(path) as session:
        row = session.forward(ids)
        while len(chosen) < n:
            chosen.append(sampler.sample(row, session.position))
            row = session.forward(chosen[-1:])
    return chosen


def _tokenizer(path):
    from functools import cache

    from rml.tokenizers import load_tokenizer

    if not hasattr(_tokenizer, "load"):
        _tokenizer.load = cache(load_tokenizer)
    return _tokenizer.load(path)


def encode(model_path, text, parse_special, add_bos):
    """Ids of a text."""
    return _tokenizer(model_path).encode(text, add_bos, parse_special)


def decode_stream(model_path, ids):
    """Pieces as a caller would see them."""
    decoder = _tokenizer(model_path).stream_decoder()
    return [*(decoder.decode([i]) for i in ids), decoder.flush()]
