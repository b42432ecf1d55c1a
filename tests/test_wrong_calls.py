"""Calls that ask for the wrong thing: each is refused in rml's own words, and changes nothing."""

import copy
import pickle
from pathlib import Path

import numpy as np
import pytest

import rml
from rml import ArgumentError, RmlError
from rml.engine.sessions import open_session
from rml.llm.decoder import DecoderLM

LLAMA = Path(__file__).resolve().parent / "fixtures" / "llama" / "model.gguf"
HELLO = [{"role": "user", "content": "Hello"}]


class Column:
    """A column of a table, as pandas has them: its numbers are labels, not places."""

    def __init__(self, values):
        self._values = values

    def __len__(self):
        return len(self._values)

    def __iter__(self):
        return iter(self._values)

    def __getitem__(self, label):
        raise KeyError(label)

    def __array__(self, dtype=None, copy=None):
        return np.array(self._values, object)

    def tolist(self):
        return list(self._values)


class Table:
    """A whole table: iterating it gives the names of its columns."""

    ndim = 2

    def __len__(self):
        return 2

    def __iter__(self):
        return iter(["text", "label"])


@pytest.fixture(scope="module")
def model():
    with rml.load(LLAMA, n_threads=1) as model:
        yield model


@pytest.fixture(scope="module")
def expected(model):
    return model.generate("Hello", max_tokens=4, seed=1).token_ids


NO_PROMPTS = [
    (b"bytes", "not bytes: decode"),
    (5, "not int"),
    (None, "not NoneType"),
    (HELLO, "messages of a conversation are for chat"),
    (HELLO[0], "messages of a conversation are for chat"),
    ({5, 6}, "not set"),
    ((token for token in [5, 6]), "not generator: make a list"),
    (Table(), "not Table"),
    (list, "not type"),
    (np.float64(5), "not float64"),
    ([5, 6.5], "token ids: integers"),
    ([True], "token ids: integers"),
    (np.array([0.5]), "token ids: integers"),
    (np.array([True]), "token ids: integers"),
    ([5, "text"], "prompt 0 of the list"),
    (["text", 5], "prompt 1 of the list"),
    (["text", None], "prompt 1 of the list"),
    (("text", float("nan")), "prompt 1 of the list"),
    (["text", [6.5]], "prompt 1 of the list must be token ids"),
    ([[5], [[6]]], "prompt 1 of the list must be token ids"),
    ([""], "no tokens"),
    ([[]], "an empty one"),
    ([2**80], "64 bits"),
    ([288], "outside the vocabulary of 288"),
    ([-1], "at least 0"),
]
NO_MESSAGES = [
    ("hello", r'messages are a list such as \[\{"role": "user"'),
    (5, "messages are a list such as"),
    (None, "messages are a list such as"),
    (HELLO[0], "messages are a list such as"),
    (["hello"], r"messages\[0\] is str"),
    ([*HELLO, None], r"messages\[1\] is NoneType"),
    ([{"content": "hello"}], r"messages\[0\] has no role; the usual ones are"),
    ([{"role": 5, "content": "hello"}], r"messages\[0\] has the role 5"),
    ([{"role": "user"}], r"messages\[0\] \(role 'user'\) has no content"),
    ([{"role": "user", "content": b"hello"}], r"messages\[0\]: the content is a bytes"),
    ([{"role": "user", "content": 5}], r"messages\[0\]: the content is a int"),
]
CALLS = [
    *((lambda m, bad=bad: m.generate(bad), words) for bad, words in NO_PROMPTS),
    *((lambda m, bad=bad: m.embed(bad), words) for bad, words in NO_PROMPTS),
    *((lambda m, bad=bad: m.stream(bad).result(), ".") for bad, _ in NO_PROMPTS),
    *((lambda m, bad=bad: m.score(bad), ".") for bad, _ in NO_PROMPTS),
    (lambda m: m.generate([]), "an empty one"),
    (lambda m: m.generate(()), "an empty one"),
    (lambda m: m.generate(""), "no tokens"),
    (lambda m: m.generate(["a"], n=2), "n is for one prompt"),
    (lambda m: m.generate("a", n=2.5), "n=2.5 must be an integer"),
    (lambda m: m.generate("a", n=10**12), "n=10+ must be an integer, at least 1 and at most"),
    (
        lambda m: m.generate("a", logit_bias={2**63: 1}),
        "logit_bias names token 9223372036854775808",
    ),
    (lambda m: m.generate("a", logit_bias={10**30: 1}), "logit_bias names token 10+ of"),
    (lambda m: m.generate("a", max_tokens=16.5), "max_tokens=16.5 must be an integer"),
    (lambda m: m.generate("a", max_tokens=True), "max_tokens=True must be an integer"),
    (lambda m: m.generate("a", max_tokens=float("inf")), "max_tokens=inf must be an integer"),
    (lambda m: m.generate("a", max_tokens=np.array([1, 2])), "max_tokens=.* must be an integer"),
    (lambda m: m.generate("a", seed=np.array([1, 2])), "seed=.* must be an integer"),
    (lambda m: m.generate("a", ignore_eos=1), "ignore_eos=1 must be True or False"),
    (lambda m: m.generate("a", truncate=np.array(["left"])), "truncate=.* must be 'left'"),
    (lambda m: m.generate("a", samplers=np.array([1, 2])), "samplers=.* must be a list of names"),
    (lambda m: m.generate("a", stop=b"x"), "stop=.* must be a text"),
    (lambda m: m.generate("a", session=m), "session=.* must be a Session"),
    (lambda m: m.generate("a", logit_bias=[1]), "logit_bias=.* must be a mapping"),
    (lambda m: m.stream(["a", "b"]), "one text or one list of token ids"),
    (lambda m: m.score(["a", ""]), "no tokens"),
    (lambda m: m.score(["a", 5]), "prompt 1 of the list"),
    (lambda m: m.score([]), "an empty one"),
    (lambda m: m.embed("a", pooling=5), "pooling is 5, but must be one of"),
    (lambda m: m.embed("a", pooling=np.array([1, 2])), "pooling is .* must be one of"),
    (lambda m: m.embed("a", normalize=1), "normalize=1 must be True or False"),
    *((lambda m, bad=bad: m.chat(bad), words) for bad, words in NO_MESSAGES),
    *((lambda m, bad=bad: m.chat(bad, merge_system=True), words) for bad, words in NO_MESSAGES),
    *((lambda m, bad=bad: m.chat(bad, truncate="left"), words) for bad, words in NO_MESSAGES),
    *((lambda m, bad=bad: m.render_chat(bad), words) for bad, words in NO_MESSAGES),
    *((lambda m, bad=bad: m.apply_chat_template(bad), words) for bad, words in NO_MESSAGES),
    (lambda m: m.chat([]), "at least one is needed"),
    (lambda m: m.chat(HELLO, tools=5), "tools is a list of mappings"),
    (lambda m: m.chat(HELLO, tools="weather"), "tools is a list of mappings"),
    (lambda m: m.chat(HELLO, chat_template_kwargs=5), "variables of a chat template are a mapping"),
    (lambda m: m.chat(HELLO, chat_template_kwargs={5: 5}), "5 is no name of a variable"),
    (
        lambda m: m.chat(HELLO, chat_template_kwargs={"messages": 5}),
        "'messages' is not for a variable",
    ),
    (lambda m: m.chat(HELLO, chat_template_kwargs={"tools": []}), "'tools' is not for a variable"),
    (lambda m: m.chat_template.render("hello"), "messages are a list"),
    (lambda m: m.chat_template.render(5), "messages are a list"),
    (lambda m: m.session(n_ctx="64"), "n_ctx='64' must be an integer"),
    (lambda m: m.session(n_ctx=64.5), "n_ctx=64.5 must be an integer"),
    (lambda m: m.session(kv_type=[]), "kv_type is \\[\\]"),
    (lambda m: m.session(n_sequences=1.5), "n_sequences=1.5 must be an integer"),
    (lambda m: m.tokenizer.encode(5), "not int"),
    (lambda m: m.tokenizer.decode(None), "token id"),
    (lambda m: m.tokenizer.decode("text"), "token id"),
    (lambda m: rml.load(5), "a path or the name of a model is expected, not 5"),
    (lambda m: rml.load(None), "a path or the name of a model is expected"),
    (lambda m: rml.load(""), "a path or the name of a model is expected, not ''"),
    (lambda m: rml.load("x" * 5000), "too long"),
    (lambda m: rml.load("~nobody-of-this-name/model.gguf"), "nobody-of-this-name"),
    (lambda m: rml.load(m.path, kv_type=[]), "kv_type is \\[\\]"),
    (lambda m: rml.load(m.path, compute=np.array([1, 2])), "compute is"),
    (lambda m: rml.load(m.path, n_threads=1.5), "n_threads=1.5 must be an integer"),
    (
        lambda m: rml.load(m.path, chat_template=5),
        "chat_template is a name, a file or Jinja source, not int",
    ),
    (lambda m: rml.load(m.path, pre=5), "pre=5"),
    (lambda m: rml.open_checkpoint(""), "a path is expected, not ''"),
    (lambda m: rml.load_tokenizer(""), "a path is expected, not ''"),
    (lambda m: rml.load_tokenizer(5), "a path is expected, not 5"),
    (lambda m: rml.dequantize(b"", []), "not a weight format"),
    (lambda m: pickle.dumps(m.stream("a")), "a Stream is neither pickled nor copied"),
    (lambda m: copy.copy(m.stream("a")), "a Stream is neither pickled nor copied"),
    (lambda m: pickle.dumps(rml.Sampler()), "a Sampler is neither pickled nor copied"),
]
SESSION_CALLS = [
    (lambda s: s.forward("text"), "encode the text first"),
    (lambda s: s.forward(b"text"), "encode the text first"),
    (lambda s: s.forward(5), "tokens are int, but one or more ids in one list"),
    (lambda s: s.forward(None), "tokens are NoneType"),
    (lambda s: s.forward([]), "one or more ids"),
    (lambda s: s.forward([[1], [2, 3]]), "unequal length"),
    (lambda s: s.forward(["1"]), "whole numbers"),
    (lambda s: s.forward([1.5]), "whole numbers"),
    (lambda s: s.forward([float("nan")]), "whole numbers"),
    (lambda s: s.forward([None]), "whole numbers"),
    (lambda s: s.forward([2**80]), "64 bits"),
    (lambda s: s.forward([288]), "outside the vocabulary"),
    (lambda s: s.forward([1], out=5), "out is int"),
    (lambda s: s.step("x"), "whole numbers"),
    (lambda s: s.hidden_states("text"), "encode the text first"),
    (lambda s: s.truncate(-1), r"truncate\(-1\): an integer from 0 to 2"),
    (lambda s: s.truncate(1.5), "from 0 to 2"),
    (lambda s: s.truncate(None), "from 0 to 2"),
    (lambda s: s.keep_prefix(5), "takes a list of token ids, not int"),
    (lambda s: s.keep_prefix("text"), "takes a list of token ids, not str"),
    (lambda s: s.save(None), "a path is expected"),
    (pickle.dumps, r"save\(path\) and Model.load_session\(path\).* fork\(\)"),
    (copy.copy, "neither pickled nor copied"),
    (copy.deepcopy, "neither pickled nor copied"),
]


@pytest.mark.parametrize("index", range(len(CALLS)))
def test_a_wrong_call_is_refused_and_the_model_answers_afterwards(model, expected, index):
    call, words = CALLS[index]

    with pytest.raises(RmlError, match=words):
        call(model)

    assert model.generate("Hello", max_tokens=4, seed=1).token_ids == expected


def test_wrong_calls_of_a_session_change_nothing(model):
    with model.session() as session:
        session.forward([5, 6])
        for call, words in SESSION_CALLS:
            with pytest.raises(ArgumentError, match=words):
                call(session)
            assert session.tokens == [5, 6]
        with model.session() as fresh:
            np.testing.assert_array_equal(session.forward([7]), fresh.forward([5, 6, 7]))


# ---- other forms of right ones ----


@pytest.mark.parametrize(
    "prompts",
    [
        ("Hello", "you"),
        np.array(["Hello", "you"]),
        np.array(["Hello", "you"], object),
        Column(["Hello", "you"]),
        {1: "Hello", 2: "you"}.values(),
        [np.str_("Hello"), "you"],
    ],
)
def test_texts_in_other_collections(model, prompts):
    listed = ["Hello", "you"]
    replies = model.generate(prompts, max_tokens=4, seed=1)
    assert [reply.token_ids for reply in replies] == [
        reply.token_ids for reply in model.generate(listed, max_tokens=4, seed=1)
    ]
    np.testing.assert_array_equal(model.embed(prompts), model.embed(listed))


@pytest.mark.parametrize(
    "ids",
    [(5, 6, 7), np.array([5, 6, 7]), range(5, 8), Column([5, 6, 7]), [5.0, 6.0, np.int8(7)]],
)
def test_ids_in_other_collections(model, ids):
    listed = [5, 6, 7]
    reply = model.generate(ids, max_tokens=4, seed=1)
    assert reply.prompt_token_ids == listed
    assert reply.token_ids == model.generate(listed, max_tokens=4, seed=1).token_ids
    assert model.stream(ids, max_tokens=4, seed=1).result().token_ids == reply.token_ids
    assert model.score(ids) == model.score(listed)
    np.testing.assert_array_equal(model.embed(ids), model.embed(listed))
    with model.session() as session, model.session() as other:
        np.testing.assert_array_equal(session.forward(ids), other.forward(listed))
        assert session.tokens == listed
        assert all(type(token) is int for token in session.tokens)


@pytest.mark.parametrize(
    "prompts",
    [
        ((5, 6), (7, 8)),
        np.array([[5, 6], [7, 8]]),
        [np.array([5, 6]), (7, 8)],
        Column([[5, 6], [7, 8]]),
    ],
)
def test_lists_of_ids_in_other_collections(model, prompts):
    listed = [[5, 6], [7, 8]]
    replies = model.generate(prompts, max_tokens=2, seed=1)
    assert [reply.prompt_token_ids for reply in replies] == listed
    np.testing.assert_array_equal(model.embed(prompts), model.embed(listed))


@pytest.mark.parametrize("nothing", [[], (), np.array([]), Column([])])
def test_embeddings_of_nothing(model, nothing):
    assert model.embed(nothing).shape == (0, model.config.d_model)


def test_whole_floats_and_numbers_of_numpy(model):
    """As JavaScript, YAML and numpy write them."""
    plain = model.generate("Hello", max_tokens=6, seed=3, top_k=5, ignore_eos=True, logprobs=2)
    same = model.generate(
        "Hello",
        max_tokens=6.0,
        seed=np.int64(3),
        top_k=np.float32(5),
        ignore_eos=np.True_,
        logprobs=2.0,
        stop_token_ids=np.array([1.0]),
        stop=np.array(["not there"]),
        echo=np.False_,
        n=1.0,
    )[0]
    assert same.token_ids == plain.token_ids
    assert same.logprobs == plain.logprobs
    with rml.load(LLAMA, n_ctx=64.0, n_batch=np.int32(8), n_threads=1.0) as other:
        assert (other.n_ctx, other.n_batch, other.n_threads) == (64, 8, 1)
        assert all(type(n) is int for n in (other.n_ctx, other.n_batch, other.n_threads))
        with other.session(n_ctx=32.0, n_sequences=2.0) as session:
            assert session.n_ctx == 32


def test_messages_in_other_collections(model):
    expected = model.apply_chat_template(HELLO)
    for messages in (tuple(HELLO), np.array(HELLO), Column(HELLO), iter(HELLO)):
        assert model.chat(messages, max_tokens=0).prompt_token_ids == expected
    # An assistant that calls a tool need not say anything.
    call = {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f"}}]}
    called = [*HELLO, call, {"role": "tool", "content": "5"}]
    assert model.chat_template.render(called)


# ---- what pickles ----


def test_metadata_and_tensors_pickle_and_cannot_be_changed():
    with rml.open_checkpoint(LLAMA) as checkpoint:
        for mapping in (checkpoint.metadata, checkpoint.tensors):
            for twin in (pickle.loads(pickle.dumps(mapping)), copy.deepcopy(mapping)):
                assert list(twin) == list(mapping)
                assert len(twin) == len(mapping)
            assert list(copy.copy(mapping)) == list(mapping)
            assert dict(mapping) == mapping | {} == {} | mapping
            with pytest.raises(TypeError):
                mapping["general.name"] = "another"
        name = "general.architecture"
        assert pickle.loads(pickle.dumps(checkpoint.metadata))[name] == "llama"
        assert name in checkpoint.metadata
        assert "'general.architecture': 'llama'" in repr(checkpoint.metadata)


def test_templates_checkpoints_and_decoders_pickle_as_what_they_were_made_of():
    source = "{{ messages[0].content }}!"
    template = rml.ChatTemplate(source)
    for twin in (pickle.loads(pickle.dumps(template)), copy.deepcopy(template)):
        assert (twin.source, twin.render(HELLO)) == (source, "Hello!")
    with rml.load(LLAMA, n_threads=1, chat_template=template) as model:
        assert model.chat_template is template
        with pickle.loads(pickle.dumps(model)) as twin:
            assert twin.render_chat(HELLO) == "Hello!"
    with rml.open_checkpoint(LLAMA) as checkpoint:
        tensor = checkpoint.tensors["output_norm.weight"]
        twins = (
            pickle.loads(pickle.dumps((checkpoint, tensor))),
            copy.deepcopy((checkpoint, tensor)),
        )
        decoder = DecoderLM(checkpoint, n_threads=1)
        assert len(pickle.dumps(decoder)) < 10_000  # no weights
        logits = open_session(decoder, 16).forward([5, 6])
        again = pickle.loads(pickle.dumps(decoder))
        np.testing.assert_array_equal(open_session(again, 16).forward([5, 6]), logits)
        with pytest.raises(ArgumentError, match="a Plan is neither pickled"):
            pickle.dumps(open_session(decoder, 16).plan())
    for opened, view in twins:  # on their own feet
        np.testing.assert_array_equal(view.numpy(), opened.tensors[view.name].numpy())
        opened.close()


def test_results_pickle(model):
    stream = model.stream("Hello", max_tokens=3, seed=1, logprobs=2)
    pieces = list(stream)
    for value in (
        stream.result(),
        *pieces,
        model.score("Hello you"),
        model.sampling,
        model.config,
        model.tokenizer.encode("Hello"),
        model.session().forward([5]).tolist(),
        rml.UNSET,
        rml.SaveError("a: b"),
    ):
        for twin in (pickle.loads(pickle.dumps(value)), copy.deepcopy(value)):
            assert repr(twin) == repr(value)
    for twin in (pickle.loads(pickle.dumps(model.tokenizer)), copy.copy(model.tokenizer)):
        assert twin.encode("Hello you") == model.tokenizer.encode("Hello you")


@pytest.mark.parametrize("progress", [[], (), [print], 5, "x", {}])
def test_progress_that_is_no_function(model, progress):
    with pytest.raises(ArgumentError, match=r"progress=.* must be a function"):
        model.generate([1, 2], max_tokens=1, progress=progress)


def test_the_smallest_multiplier(model):
    plain = model.generate([1, 2] * 9, max_tokens=3, temperature=0)
    tiny = model.generate([1, 2] * 9, max_tokens=3, temperature=0, dry_multiplier=1e-320)
    assert tiny.token_ids == plain.token_ids
