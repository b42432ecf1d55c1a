"""The same seed and request give the same ids, whatever else is different.

Compared are ids and logprobs, bit by bit, with those of a request that runs alone, on one thread,
in a new session.
"""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import rml

FIXTURES = Path(__file__).resolve().parent / "fixtures"
MODELS = sorted([*FIXTURES.glob("*/model.gguf"), FIXTURES / "llama" / "model-q4_0.gguf"])
PROMPT = [(7 * i) % 60 + 3 for i in range(35)]  # longer than a page of keys and values
REQUESTS = {
    "default": {"seed": 1},
    "hot": {"seed": 2**64 - 1, "temperature": 5.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0},
    "xtc and penalties": {
        "seed": 7,
        "temperature": 4.0,
        "xtc_probability": 0.5,
        "xtc_threshold": 0.01,
        "repeat_penalty": 1.2,
        "dry_multiplier": 0.8,
    },
    "mirostat": {"seed": 3, "temperature": 4.0, "mirostat": 2, "mirostat_tau": 3.0},
}


def load(path, **options):
    return rml.load(path, **{"n_threads": 1, **options})


def outcome(reply):
    return reply.token_ids, [entry.logprob for entry in reply.logprobs]


def ask(model, request, prompt=PROMPT, **options):
    given = {"max_tokens": 8, "ignore_eos": True, "logprobs": True, **request, **options}
    return outcome(model.generate(prompt, **given))


@pytest.fixture(scope="module", params=MODELS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def path(request):
    return request.param


@pytest.fixture(scope="module")
def model(path):
    with load(path) as model:
        yield model


@pytest.fixture(scope="module")
def alone(path):
    """What every request gives in a model of its own."""
    found = {}
    for name, request in REQUESTS.items():
        with load(path) as model:
            found[name] = ask(model, request)
    return found


@pytest.mark.parametrize(("n_threads", "n_batch"), [(2, 1), (3, 7), (2, 512)])
def test_any_number_of_threads_and_parts_of_the_prompt(path, alone, n_threads, n_batch):
    with load(path, n_threads=n_threads, n_batch=n_batch) as model:
        assert {name: ask(model, request) for name, request in REQUESTS.items()} == alone


@pytest.mark.parametrize("name", REQUESTS)
def test_any_state_of_the_cache(model, alone, name):
    request, expected = REQUESTS[name], alone[name]
    with model.session() as session:
        for held in (PROMPT, PROMPT[:20], [*PROMPT, 9, 9], [*PROMPT[:32], 8]):
            session.truncate(0)
            session.forward(held)
            assert ask(model, request, session=session) == expected, held
            # With the prompt and the continuation in it.
            assert ask(model, request, session=session) == expected
        with session.fork() as other:
            assert ask(model, request, session=other) == expected


def test_any_company(model, alone):
    """Before, behind, in turns and at the same time."""
    options = {"max_tokens": 8, "ignore_eos": True, "logprobs": True}
    streams = [model.stream(PROMPT, **options, **request) for request in REQUESTS.values()]
    others = [model.stream(PROMPT[i:], **options, seed=i) for i in range(3)]
    for _ in range(3):  # tokens
        for stream in (*others, *streams):
            next(stream)
    assert [outcome(stream.result()) for stream in streams] == list(alone.values())
    with ThreadPoolExecutor(4) as pool:
        asked = list(pool.map(lambda request: ask(model, request), [*REQUESTS.values()] * 2))
    assert asked == [*alone.values()] * 2
    for name, request in REQUESTS.items():
        replies = model.generate([[5, 6], PROMPT, [9]], **options, **request)
        assert outcome(replies[1]) == alone[name]
        seeds = {**request, "seed": (request["seed"] - 2) % 2**64}
        assert outcome(model.generate(PROMPT, n=3, **options, **seeds)[2]) == alone[name]


@pytest.mark.parametrize("name", REQUESTS)
def test_streamed_or_not_at_once_or_not(model, alone, name):
    options = {"max_tokens": 8, "ignore_eos": True, "logprobs": True, **REQUESTS[name]}
    pieces = list(model.stream(PROMPT, **options))

    async def arriving():
        return [piece async for piece in model.stream(PROMPT, **options)]

    for found in (pieces, asyncio.run(arriving())):
        ids = [token for piece in found for token in piece.token_ids]
        logprobs = [entry.logprob for piece in found for entry in piece.logprobs]
        assert (ids, logprobs) == alone[name]


@pytest.mark.parametrize("name", [name for name in REQUESTS if name != "mirostat"])
def test_a_text_that_was_cut_goes_on_as_it_would_have(model, alone, name):
    """Chance is counted by the place in the text, so a continuation of the text draws the same."""
    ids, logprobs = alone[name]
    for n in (1, 7):
        rest = ask(model, REQUESTS[name], [*PROMPT, *ids[:n]], max_tokens=8 - n)
        assert rest == (ids[n:], logprobs[n:])


@pytest.mark.parametrize("name", REQUESTS)
def test_neighbouring_seeds_are_other_texts(model, name):
    """So that the equalities above are about something that is drawn."""
    options = {**REQUESTS[name], "seed": 0, "max_tokens": 8, "ignore_eos": True}
    texts = {tuple(reply.token_ids) for reply in model.generate(PROMPT, n=20, **options)}

    assert len(texts) > 1 if name == "default" else len(texts) > 15
    assert len(texts) == 20 or name != "hot"
