"""The face of rml: a loaded model that generates, chats and scores."""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, Unpack, overload

from rml.engine.session import Session
from rml.engine.sessions import Sessions
from rml.errors import ArgumentError, ClosedError
from rml.files import Checkpoint
from rml.generation.batch import complete
from rml.generation.chat import (
    ChatPrompts,
    Messages,
    without_system,
)
from rml.generation.embedding import Pooling, embed
from rml.generation.generation import Evaluated
from rml.generation.prompts import (
    Ids,
    Prompt,
    Prompts,
    given_prompt,
    given_prompts,
    longest_prompt,
    prompt_ids,
    text_prompt,
)
from rml.generation.request import DEFAULT_LENGTH, ChatOptions, GenerateOptions, Request
from rml.generation.results import Completion
from rml.generation.scoring import Score, score
from rml.generation.stream import Stream
from rml.llm.decoder import DecoderLM
from rml.llm.plan import Plan
from rml.memory_room import out_of_memory
from rml.ranges import boolean, checked, integer
from rml.sampling.candidates import Floats
from rml.sampling.settings import SamplingSettings
from rml.tokenizers import Tokenizer
from rml.tokenizers.end_tokens import EndTokens

if TYPE_CHECKING:
    from rml.tokenizers import ChatTemplate

__all__ = ["Model"]

_MOST_COMPLETIONS = 1_000_000  # of a call, which holds them all until the last one is there


class Model:
    """A loaded model: immutable, and safe to use from several threads, whose steps take turns.

    Made by `rml.load`, which says what the arguments mean. It pickles as its path and arguments.

    Attributes
    ----------
    path : Path
        The file or folder.
    config : ModelConfig
        Sizes and switches.
    metadata : mapping
        Keys and values of a GGUF file; empty for a Hugging Face folder.
    tokenizer : Tokenizer
        Text to ids and back.
    end_tokens : mapping of int to tuple of str
        Ids that end a text, and for each what says so: keys of the files, or its name.
    sampling : SamplingSettings
        What applies where a call says nothing; printed, it shows where each value comes from.
    n_ctx : int
        Most tokens of prompt and completion together.
    n_batch, kv_type, compute, n_threads
        As given to `load`, or what it chose.
    """

    def __init__(
        self,
        path: Path,
        checkpoint: Checkpoint,
        decoder: DecoderLM,
        tokenizer: Tokenizer,
        *,
        sessions: Sessions,
        prompts: ChatPrompts,
        sampling: SamplingSettings,
        end_tokens: EndTokens,
        n_batch: int,
        again: Callable[[], "Model"],
    ) -> None:
        self.path = path
        self.config = decoder.config
        self.metadata = checkpoint.metadata
        self.tokenizer = tokenizer
        self.end_tokens = end_tokens
        self.sampling = sampling
        self.n_ctx, self.kv_type = sessions.n_ctx, sessions.kv_type
        self.n_batch = n_batch
        self.compute, self.n_threads = decoder.compute, decoder.n_threads
        self._checkpoint = checkpoint
        self._sessions = sessions
        self._prompts = prompts
        self._again = again

    @property
    def stop_ids(self) -> frozenset[int]:
        """Ids that end a text; `end_tokens` says why."""
        return frozenset(self.end_tokens)

    # ---- generating ----

    @overload
    def generate(self, prompt: str | Ids, **options: Unpack[GenerateOptions]) -> Completion: ...
    @overload
    def generate(
        self, prompt: str | Ids, *, n: int, **options: Unpack[GenerateOptions]
    ) -> list[Completion]: ...
    @overload
    def generate(self, prompt: Prompts, **options: Unpack[GenerateOptions]) -> list[Completion]: ...
    def generate(
        self,
        prompt: str | Ids | Prompts,
        *,
        n: int | None = None,
        **options: Unpack[GenerateOptions],
    ) -> Completion | list[Completion]:
        """Continue a text.

        Parameters
        ----------
        prompt : str or sequence of int, or a sequence of these
            What to continue. Text gets a beginning-of-text token where the model wants one; ids are
            taken as they are. Of a list (or tuple, array, column of a table), each prompt is
            continued on its own, with the same seed, and the result is a list.
        n : int, optional
            Return a list of so many continuations of one prompt, with the seeds that follow each
            other from `seed` on; the prompt is evaluated once.
        **options
            See `GenerateOptions`; names of other tools are understood. Without `max_tokens` a
            completion has at most 256 tokens.

        Raises
        ------
        ArgumentError
            If an option is unknown or out of its range, or the prompt is empty.
        ContextOverflow
            If the prompt is longer than the context; it is shortened only with `truncate`.
        NumericError
            If the model's logits are no numbers.
        """
        request = Request.of(options, self.sampling, DEFAULT_LENGTH)
        given, many = given_prompts(prompt)
        prompts = [self._prompt(each, request) for each in given or [[]]]
        if many:
            if n is not None:
                raise ArgumentError("n is for one prompt, not for a list of them")
            if request.session is not None:  # each goes on in what the one before has left
                return [self._stream(each, request).result() for each in prompts]
            return self._completed(self._stream(each, request) for each in prompts)
        (one,) = prompts
        if n is None:
            return self._stream(one, request).result()
        n = checked("n", n, integer(1, _MOST_COMPLETIONS))
        # The prompt is evaluated once; the others begin as forks of what the first has then.
        first = self._stream(one, request, keeps_evaluated=True)

        def streams() -> Iterator[Stream]:
            yield first
            for i in range(1, n):
                again = replace(request, seed=(request.seed + i) % 2**64, session=None)
                yield self._stream(one, again, known=first.evaluated)

        try:
            first.evaluate_prompt()
            return self._completed(streams())
        finally:
            first.forget_evaluated()

    def _completed(self, streams: Iterable[Stream]) -> list[Completion]:
        return complete(streams, self._sessions.engine)

    __call__ = generate

    def stream(self, prompt: str | Ids, **options: Unpack[GenerateOptions]) -> Stream:
        """Continue a text piece by piece; the arguments are those of `generate`.

        They are checked now; the prompt is evaluated when the first piece is asked for.

        Examples
        --------
        >>> for piece in model.stream("Once upon a time", max_tokens=64):  # doctest: +SKIP
        ...     print(piece.text, end="", flush=True)
        """
        request = Request.of(options, self.sampling, DEFAULT_LENGTH)
        return self._stream(self._prompt(given_prompt(prompt), request), request)

    def chat(self, messages: Messages, **options: Unpack[ChatOptions]) -> Completion:
        """Answer a conversation.

        The answer ends by itself, or with the context, unless `max_tokens` ends it before. With the
        same `session` for every turn, only what is new is evaluated.

        Parameters
        ----------
        messages : sequence of mapping
            Each with ``"role"`` and ``"content"``: a text, or a list of parts like
            ``{"type": "text", "text": ...}``. No content can make a control token.
        **options
            See `ChatOptions` and `GenerateOptions`; names of other tools are understood.

        Raises
        ------
        TemplateError
            If the model has no chat template, or the template refuses the messages or does not read
            the tools.
        ArgumentError
            As in `generate`, and if the messages have another form, a message says nothing, has a
            role that nobody knows, or holds what is no text.
        ContextOverflow, NumericError
            As in `generate`.
        """
        return self.stream_chat(messages, **options).result()

    def stream_chat(self, messages: Messages, **options: Unpack[ChatOptions]) -> Stream:
        """Answer a conversation piece by piece; the arguments are those of `chat`."""
        going_on = options.pop("continue_final_message", False)
        checked("continue_final_message", going_on, boolean)
        if checked("merge_system", options.pop("merge_system", False), boolean):
            messages = without_system(messages)
        variables = options.pop("chat_template_kwargs", None)
        variables = {} if variables is None else variables
        tools = options.pop("tools", None)
        request = Request.of(options, self.sampling)
        for name in ("echo", "parse_special"):
            if getattr(request, name):
                raise ArgumentError(f"{name} is for prompts, not for messages of a chat")
        limit = self._limit(request) if request.truncate else None
        prompt = self._prompts.prompt(messages, tools, going_on, variables, limit)
        return self._stream(prompt, request)

    @overload
    def score(
        self, text: str | Ids, *, top_logprobs: int = 0, parse_special: bool = False
    ) -> Score: ...
    @overload
    def score(
        self, text: Prompts, *, top_logprobs: int = 0, parse_special: bool = False
    ) -> list[Score]: ...
    @out_of_memory("the scores of a text")
    def score(
        self, text: str | Ids | Prompts, *, top_logprobs: int = 0, parse_special: bool = False
    ) -> Score | list[Score]:
        """Say how likely the model finds each token of a text.

        Parameters
        ----------
        text : str or sequence of int, or a sequence of these
            Encoded as a prompt of `generate` is. Several are evaluated together, and the result is
            a list.
        top_logprobs : int
            How many of the likeliest tokens to list for each place.
        parse_special : bool
            As in `GenerateOptions`.

        Raises
        ------
        ArgumentError, ContextOverflow
            As in `generate`.
        """
        parse_special = checked("parse_special", parse_special, boolean)
        top = checked("top_logprobs", top_logprobs, integer(0))
        given, many = given_prompts(text)
        texts = [
            prompt_ids(each, self.tokenizer, parse_special=parse_special) for each in given or [[]]
        ]
        scores = score(self._sessions, texts, top=top)
        return scores if many else scores[0]

    @out_of_memory("the vectors of texts")
    def embed(
        self,
        text: str | Ids | Prompts,
        *,
        pooling: Pooling = "mean",
        normalize: bool = True,
    ) -> Floats:
        """Turn a text into a vector: its tokens' states after the last layer and its norm, pooled.

        A decoder is trained to predict the next token. How well its states tell texts apart depends
        on the model; models made for it name their pooling.

        Parameters
        ----------
        text : str or sequence of int, or a sequence of these
            Texts get the tokens around them that the model wants; ids are taken as they are.
        pooling : str
            ``"mean"`` of all tokens, or the ``"last"`` one, which has seen all others.
        normalize : bool
            Scale each vector to length 1, so that a dot product is the cosine.

        Returns
        -------
        ndarray of float32, shape (d_model,), or (n, d_model) for a sequence of n texts

        Raises
        ------
        ArgumentError
            If an argument is out of its range, or a text has no tokens.
        ContextOverflow
            If a text is longer than the context.
        NumericError
            If the model's states are no numbers.
        """
        texts, many = given_prompts(text)
        prompts = [prompt_ids(each, self.tokenizer, whole=True) for each in texts]
        vectors = embed(self._sessions, prompts, pooling=pooling, normalize=normalize)
        return vectors if many else vectors[0]

    def _prompt(self, prompt: str | list[int], request: Request) -> Prompt:
        limit = self._limit(request) if request.truncate else None
        special = request.parse_special
        return text_prompt(prompt, self.tokenizer, parse_special=special, limit=limit)

    def _limit(self, request: Request) -> int:
        return longest_prompt((request.session or self._sessions).n_ctx, request.max_tokens)

    def _stream(
        self,
        prompt: Prompt,
        request: Request,
        *,
        known: Evaluated | None = None,
        keeps_evaluated: bool = False,
    ) -> Stream:
        self._require_open()
        return Stream(
            prompt,
            request,
            self.tokenizer,
            sessions=self._sessions,
            stop_ids=self.stop_ids,
            known=known,
            keeps_evaluated=keeps_evaluated,
        )

    # ---- chat templates ----

    @property
    def chat_template(self) -> "ChatTemplate | None":
        """The template of `chat`: the one given to `load`, or the model's; None without one."""
        return self._prompts.template

    def render_chat(
        self,
        messages: Messages,
        tools: Sequence[Any] | None = None,
        add_generation_prompt: bool = True,
        **variables: Any,  # noqa: ANN401 - a template may read anything
    ) -> str:
        """Write a conversation as the text that the model sees, as Transformers renders it.

        Parameters
        ----------
        messages, tools
            As in `chat`.
        add_generation_prompt : bool
            End with the opening of an answer.
        **variables
            Further variables of the template, `now` (a datetime, for templates that write the date)
            and `continue_final_message`. A warning names those that the template does not read.

        Raises
        ------
        TemplateError, ArgumentError
            As in `chat`.
        """
        parts = self._prompts.parts(messages, tools, add_generation_prompt, variables)
        return "".join(text for text, _ in parts)

    def apply_chat_template(
        self,
        messages: Messages,
        tools: Sequence[Any] | None = None,
        add_generation_prompt: bool = True,
        **variables: Any,  # noqa: ANN401 - a template may read anything
    ) -> list[int]:
        """Token ids of a conversation; the arguments are those of `render_chat`.

        Only what the template wrote can be a control token. There is exactly one beginning-of-text
        token where the model wants one, whether or not the template writes it.
        """
        return self._prompts.ids(messages, tools, add_generation_prompt, variables)

    # ---- sessions, and the end ----

    def session(
        self, *, n_ctx: int | None = None, kv_type: str | None = None, n_sequences: int = 1
    ) -> Session:
        """Open a sequence of its own, to evaluate tokens by hand or to keep between calls.

        Parameters
        ----------
        n_ctx : int, optional
            Positions that it holds; by default those of the model.
        kv_type : str, optional
            How keys and values are stored; by default as given to `load`.
        n_sequences : int
            Without effect: sessions and forks share the memory of the model (`kv_memory` of
            `rml.load`) and take what they need.

        Raises
        ------
        OutOfMemory
            If an `n_ctx` that is given does not fit as a whole into what is left of the memory, or
            limits of the process leave no room for the pages.
        """
        return self._sessions.open(n_ctx, kv_type, n_sequences)

    def plan(self, n_tokens: int = 1) -> Plan:
        """Return the operations of a step of `n_tokens`, to look at or to profile.

        Of a step behind many tokens, see `Session.plan`.

        Parameters
        ----------
        n_tokens : int
            Tokens of the step, at most 512.

        Examples
        --------
        >>> print(model.plan())  # doctest: +SKIP
        >>> print(model.plan(64).profile())  # doctest: +SKIP
        """
        with self._sessions.open() as session:
            return session.plan(n_tokens)

    def load_session(
        self, path: str | os.PathLike[str], *, n_ctx: int | None = None, kv_type: str | None = None
    ) -> Session:
        """Open a session that `Session.save` wrote; it goes on with the bits it would have had.

        Damage is found, forgery is not: a file from a stranger can have the model go on from any
        state, also one that its tokens do not show. It can run no code, reach no other memory, and
        take no more than its size.

        Parameters
        ----------
        path : str or path-like
            The file.
        n_ctx, kv_type
            As in `session`.

        Raises
        ------
        CheckpointError
            If the file is missing, cut or damaged, or the session is of another model, cache type
            or compute mode.
        ContextOverflow
            If it holds more tokens than `n_ctx`.
        """
        return self._sessions.load(path, n_ctx, kv_type)

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._sessions.closed

    def close(self) -> None:
        """Close all sessions and give back the files; closing twice does nothing."""
        self._sessions.close()
        self._checkpoint.close()

    def _require_open(self) -> None:
        if self.closed:
            raise ClosedError(f"{self.path}: the model is closed")

    def __enter__(self) -> Self:
        self._require_open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __reduce__(self) -> tuple[Callable[[], "Model"], tuple[()]]:
        return self._again, ()

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"n_ctx {self.n_ctx}, {self.compute}"
        return f"<Model {str(self.path)!r}, {self.config.architecture}, {state}>"
