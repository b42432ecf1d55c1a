"""A real model through the face of rml: SmolLM2-135M-Instruct, a Q4_1 GGUF file."""

import threading
import time

import pytest

import rml

REFERENCE_MODE = rml.info()["backend"] == "python"
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.fixture(scope="module")
def model(smollm2_path):
    with rml.load(smollm2_path) as model:
        yield model


def test_a_text_goes_on(model):
    reply = model.generate("The capital of France is", max_tokens=2, temperature=0)

    assert reply.text == " Paris."
    assert reply.prompt_token_ids == [504, 3575, 282, 4649, 314]
    assert reply.token_ids == [7042, 30]


@pytest.mark.slow
def test_a_question_is_answered_as_the_weights_say(model):
    """In exact arithmetic the answer is this; inputs rounded to 8 bits once give another."""
    reply = model.chat(QUESTION, max_tokens=24, temperature=0)

    assert reply.text == "The capital of France is Paris."
    assert (reply.finish_reason, reply.stop_reason) == ("stop", 2)
    assert reply.usage.prompt_tokens == 37


@pytest.mark.skipif(REFERENCE_MODE, reason="takes minutes without compiled kernels")
def test_a_conversation_in_one_session_is_that_of_fresh_ones(model):
    messages = list(QUESTION)
    with model.session() as session:
        for question in ("And of Italy?", "Tell me a story.", "Shorter."):
            options = {"max_tokens": 24, "seed": 7}
            kept = model.chat(messages, session=session, **options)
            fresh = model.chat(messages, **options)
            assert kept.token_ids == fresh.token_ids
            assert kept.text == fresh.text
            messages += [
                {"role": "assistant", "content": kept.text},
                {"role": "user", "content": question},
            ]
    assert kept.usage.cached_tokens > 60


@pytest.mark.skipif(REFERENCE_MODE, reason="takes minutes without compiled kernels")
def test_streamed_text_is_whole_characters_and_equals_the_result(model):
    stream = model.stream("Emoji: 🦙 🚀 é 你好", max_tokens=60, seed=11, temperature=1.2)

    pieces = list(stream)

    assert "".join(piece.text for piece in pieces) == stream.result().text
    assert model.tokenizer.decode(stream.result().token_ids) == stream.result().text
    assert all(piece.text for piece in pieces[:-1])


@pytest.mark.skipif(REFERENCE_MODE, reason="takes minutes without compiled kernels")
def test_a_long_prompt_is_given_up_in_the_middle_of_a_part(model):
    """And the session answers as before: a part of 512 tokens takes a second."""
    expected = model.generate([504, 3575, 282], max_tokens=3, temperature=0).token_ids
    with model.session() as session:
        stream = model.stream(list(range(1000, 1500)), session=session, max_tokens=1)
        timer = threading.Timer(0.1, stream.cancel)
        timer.start()
        start = time.perf_counter()
        reply = stream.result()
        seconds = time.perf_counter() - start
        timer.join()

        assert (reply.finish_reason, reply.token_ids) == ("cancelled", [])
        assert session.position == 0
        whole = time.perf_counter()
        session.forward(list(range(1000, 1500)))
        whole = time.perf_counter() - whole
        assert seconds < max(0.3, 0.7 * whole)
        session.truncate(0)
        again = model.generate([504, 3575, 282], session=session, max_tokens=3, temperature=0)
        assert again.token_ids == expected


@pytest.mark.skipif(REFERENCE_MODE, reason="takes minutes without compiled kernels")
def test_a_model_may_be_closed_during_a_step_of_another_thread(smollm2_path):
    for delay in (0.02, 0.1, 0.2):
        model = rml.load(smollm2_path, n_ctx=1024)
        ended = []

        def work(model=model, ended=ended):
            try:
                model.generate(list(range(1000, 1500)), max_tokens=500, ignore_eos=True)
            except rml.ClosedError as error:
                ended.append(error)

        thread = threading.Thread(target=work)
        thread.start()
        time.sleep(delay)
        model.close()
        thread.join(60)

        assert len(ended) == 1
