"""Prompts that are too long: refused, or shortened and said so."""

from pathlib import Path

import pytest

import rml
from rml import ArgumentError, ContextOverflow
from rml.generation.prompts import longest_prompt, without_oldest

LLAMA = Path(__file__).resolve().parents[1] / "fixtures" / "llama" / "model.gguf"


@pytest.fixture(scope="module")
def model():
    with rml.load(LLAMA, n_threads=1) as model:
        yield model


@pytest.mark.parametrize(
    ("n_ctx", "max_tokens", "expected"),
    [(100, None, 75), (100, 10, 90), (100, 80, 75), (100, 0, 100), (3, None, 3), (1, 5, 1)],
)
def test_room_for_the_answer(n_ctx, max_tokens, expected):
    assert longest_prompt(n_ctx, max_tokens) == expected


@pytest.mark.parametrize(
    ("ids", "limit", "kept", "dropped"),
    [
        ([1, 2, 3, 4], 4, [1, 2, 3, 4], 0),
        ([1, 2, 3, 4], 3, [1, 3, 4], 1),
        ([1, 2, 3, 4], 2, [1, 4], 2),
        ([1, 2, 3, 4], 1, [4], 3),
        ([2, 3, 4, 5], 3, [3, 4, 5], 1),  # no beginning-of-text token
        ([1], 1, [1], 0),
    ],
)
def test_the_oldest_go_but_for_the_beginning_of_text(ids, limit, kept, dropped):
    prompt = without_oldest(ids, limit, bos_id=1)

    assert (prompt.ids, prompt.n_dropped) == (kept, dropped)


def test_a_long_text(model):
    ids = [1, *range(3, 203)]  # 1 begins a text

    with pytest.raises(ContextOverflow, match='truncate="left"') as caught:
        model.generate(ids)
    assert (caught.value.needed, caught.value.limit) == (201, 128)
    reply = model.generate(ids, truncate="left", max_tokens=8, ignore_eos=True, seed=1)

    assert reply.prompt_token_ids == [1, *ids[-119:]]
    assert (len(reply.token_ids), reply.usage.dropped_tokens) == (8, 81)
    assert reply.usage.prompt_tokens == 120
    assert reply.token_ids == (
        model.generate([1, *ids[-119:]], max_tokens=8, ignore_eos=True, seed=1).token_ids
    )
    assert "".join(piece.text for piece in model.stream(ids, truncate="left", seed=1, max_tokens=8))
    whole = model.generate(ids[:50], truncate="left", max_tokens=8)
    assert (whole.prompt_token_ids, whole.usage.dropped_tokens) == (ids[:50], 0)


def test_the_context_of_a_session_counts(model):
    with model.session(n_ctx=40) as session:
        reply = model.generate(list(range(3, 90)), session=session, truncate="left")
        assert reply.prompt_token_ids == list(range(60, 90))


@pytest.mark.parametrize("bad", ["right", "middle", True, 5])
def test_other_ways_are_refused(model, bad):
    with pytest.raises(ArgumentError, match="truncate"):
        model.generate("a", truncate=bad)


def conversation(n):
    """System, then `n` turns; the last one waits for its answer."""
    messages = [{"role": "system", "content": "Be kind"}]
    for i in range(n):
        messages.append({"role": "user", "content": f"Question {i}"})
        messages.append({"role": "assistant", "content": f"Answer {i}"})
    return messages[:-1]


@pytest.mark.parametrize("n", [1, 2, 3, 5, 12, 30])
def test_whole_turns_of_a_chat_go(model, n):
    messages = conversation(n)
    limit = longest_prompt(128, 30)

    reply = model.chat(messages, truncate="left", max_tokens=30, seed=1)

    # By hand: the system message and the last k turns, for the largest k that fits.
    candidates = [
        model.apply_chat_template([messages[0], *messages[1 + 2 * first :]]) for first in range(n)
    ]
    fitting = next((ids for ids in candidates if len(ids) <= limit), candidates[-1])
    assert reply.prompt_token_ids == fitting
    assert reply.usage.dropped_tokens == len(candidates[0]) - len(fitting)
    assert reply.usage.prompt_tokens <= limit


def test_a_last_turn_that_is_too_long_is_refused(model):
    messages = [*conversation(3), {"role": "assistant", "content": "x"}]
    messages.append({"role": "user", "content": "word " * 200})

    with pytest.raises(ContextOverflow):
        model.chat(messages, truncate="left")
    with pytest.raises(ContextOverflow):
        model.chat(conversation(30))


def test_what_belongs_to_a_turn(model):
    """Tools' answers go with their question; a chat may begin with the assistant."""
    messages = [
        {"role": "assistant", "content": "Welcome, dear friend, to this long greeting"},
        {"role": "user", "content": "What is the weather like?"},
        {"role": "assistant", "content": "Let me see"},
        {"role": "tool", "content": "sunny, with some clouds, and a little rain later on"},
        {"role": "assistant", "content": "Sunny"},
        {"role": "user", "content": "Thanks"},
    ]
    reply = model.chat(messages, truncate="left", max_tokens=30)

    assert reply.prompt_token_ids == model.apply_chat_template(messages[5:])
    assert reply.usage.dropped_tokens > 0
