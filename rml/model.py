"""The face of rml: load a model, and let it generate and chat."""

import logging
import os
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypedDict, Unpack, cast, overload

import numpy as np
import numpy.typing as npt

from rml.errors import ArgumentError, ClosedError
from rml.files import Checkpoint, open_checkpoint
from rml.files.locate import locate
from rml.generation.chat import ChatPrompts, Messages
from rml.generation.context import default_context
from rml.generation.defaults import generation_defaults
from rml.generation.ranges import Check, boolean, integer, token_ids
from rml.generation.request import ChatOptions, GenerateOptions, Request, canonical
from rml.generation.results import Completion
from rml.generation.scoring import Score, score
from rml.generation.session import Session
from rml.generation.session_pool import SessionPool
from rml.generation.stream import Stream
from rml.llm.decoder import DecoderLM
from rml.tokenizers import Tokenizer, load_tokenizer

if TYPE_CHECKING:
    from rml.tokenizers import ChatTemplate

__all__ = ["Model", "load"]

_log = logging.getLogger("rml")

Ids = Sequence[int] | npt.NDArray[np.integer]

# Names that other tools give to arguments of `load`.
_ALIASES = {
    "context_length": "n_ctx",
    "max_context": "n_ctx",
    "num_ctx": "n_ctx",
    "threads": "n_threads",
}


class _Arguments(TypedDict):
    n_threads: int | None
    compute: str
    n_ctx: int | None
    n_batch: int
    kv_type: str
    chat_template: str | None
    pre: str | None


def load(
    path: str | os.PathLike[str],
    *,
    n_threads: int | None = None,
    compute: str = "int8x2",
    n_ctx: int | None = None,
    n_batch: int = 512,
    kv_type: str = "f16",
    chat_template: str | None = None,
    pre: str | None = None,
    **other_names: Any,  # noqa: ANN401 - checked as what they stand for
) -> "Model":
    """Load a model; nothing is downloaded.

    Parameters
    ----------
    path : str or path-like
        A GGUF file, or the first part of a split one; a Hugging Face folder; or the name of a model
        that was pulled before, such as ``"smollm2"``.
    n_threads : int, optional
        Threads of a step; by default all processors that the process may use. Results do not depend
        on it.
    compute : str
        How quantized weights are multiplied: ``"int8x2"`` (exact to about 1e-7 in the
        probabilities), ``"int8"`` (faster, inputs rounded to 8 bits) or ``"f32"``.
    n_ctx : int, optional
        Most tokens of prompt and completion together; by default the model's own context, if the
        memory holds it.
    n_batch : int
        Tokens of a prompt that are evaluated at a time: the grain of progress and cancelling.
    kv_type : str
        How keys and values are stored: ``"f16"``, ``"f32"`` or ``"int8"``.
    chat_template : str, optional
        Jinja source to use instead of the model's template, or the name of one of several that the
        model has.
    pre : str, optional
        Splitting rule of the tokenizer, for a GGUF file that names none.
    **other_names
        ``context_length``, ``max_context`` or ``num_ctx`` for `n_ctx`, ``threads`` for `n_threads`.

    Returns
    -------
    Model
        To be closed, or used in a ``with`` statement.

    Raises
    ------
    CheckpointError
        If there is no such file, or it is broken.
    DownloadError
        If `path` is the name of a model that was not pulled yet.
    UnsupportedModel, TokenizerError
        If the file is sound but asks for what rml does not do.
    ArgumentError
        If an argument is unknown or out of its range.

    Examples
    --------
    >>> with rml.load("smollm2") as model:  # doctest: +SKIP
    ...     print(model.generate("The capital of France is", max_tokens=8))
    """
    arguments: dict[str, Any] = {
        "n_threads": n_threads,
        "compute": compute,
        "n_ctx": n_ctx,
        "n_batch": n_batch,
        "kv_type": kv_type,
        "chat_template": chat_template,
        "pre": pre,
    }
    for name, value in canonical(other_names, arguments, _ALIASES).items():
        if arguments[name] is not None:
            raise ArgumentError(f"{name} was given twice, once under another name")
        arguments[name] = value
    return Model(locate(path), **arguments)


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
    stop_ids : frozenset of int
        Ids that end a text.
    sampling : SamplingSettings
        What applies where a call says nothing; printed, it shows where each value comes from.
    n_ctx : int
        Most tokens of prompt and completion together.
    n_batch, kv_type, compute, n_threads
        As given to `load`, or what it chose.
    """

    def __init__(self, path: Path, **arguments: Unpack[_Arguments]) -> None:
        self.path = path
        self._arguments = arguments
        self.n_batch: int = _checked("n_batch", arguments["n_batch"], integer(1))
        self.kv_type = arguments["kv_type"]
        self._checkpoint = open_checkpoint(path)
        try:
            self._open(self._checkpoint)
        except BaseException:
            self._checkpoint.close()
            raise
        _log.info(
            "%s: %s, %d layers, context %d, compute %s, %d threads",
            path,
            self.config.architecture,
            self.config.n_layers,
            self.n_ctx,
            self.compute,
            self.n_threads,
        )

    def _open(self, checkpoint: Checkpoint) -> None:
        arguments = self._arguments
        decoder = DecoderLM(
            checkpoint, compute=arguments["compute"], n_threads=arguments["n_threads"]
        )
        self.config = decoder.config
        self.compute, self.n_threads = decoder.compute, decoder.n_threads
        self.metadata = checkpoint.metadata
        if checkpoint.format == "gguf":
            self.tokenizer = Tokenizer.from_gguf(
                checkpoint.metadata, path=str(checkpoint.path), pre=arguments["pre"]
            )
        else:
            file = checkpoint.path
            self.tokenizer = load_tokenizer(file if file.is_dir() else file.parent)
        self.sampling, stop_ids = generation_defaults(checkpoint)
        self.stop_ids = self.tokenizer.stop_ids | stop_ids
        self._prompts = ChatPrompts(self.tokenizer, arguments["chat_template"], str(self.path))
        n_ctx = arguments["n_ctx"]
        if n_ctx is None:
            self.n_ctx = default_context(
                self.config,
                weights=sum(tensor.data.nbytes for tensor in checkpoint.tensors.values()),
                kv_type=self.kv_type,
                n_batch=self.n_batch,
            )
        else:
            self.n_ctx = self._checked_context(n_ctx)
        self._sessions = SessionPool(
            decoder, n_ctx=self.n_ctx, kv_type=self.kv_type, name=str(self.path)
        )

    # ---- generating ----

    @overload
    def generate(self, prompt: str | Ids, **options: Unpack[GenerateOptions]) -> Completion: ...
    @overload
    def generate(
        self, prompt: str | Ids, *, n: int, **options: Unpack[GenerateOptions]
    ) -> list[Completion]: ...
    @overload
    def generate(
        self, prompt: list[str] | list[list[int]], **options: Unpack[GenerateOptions]
    ) -> list[Completion]: ...
    def generate(
        self,
        prompt: str | Ids | list[str] | list[list[int]],
        *,
        n: int | None = None,
        **options: Unpack[GenerateOptions],
    ) -> Completion | list[Completion]:
        """Continue a text.

        Parameters
        ----------
        prompt : str or sequence of int, or a list of these
            What to continue. Text gets a beginning-of-text token where the model wants one; ids are
            taken as they are. Of a list, each prompt is continued on its own, with the same seed,
            and the result is a list.
        n : int, optional
            Return a list of so many continuations of one prompt, with the seeds that follow each
            other from `seed` on; the prompt is evaluated once.
        **options
            See `GenerateOptions`; names of other tools are understood.

        Raises
        ------
        ArgumentError
            If an option is unknown or out of its range, or the prompt is empty.
        ContextOverflow
            If the prompt is longer than the context; it is never shortened.
        NumericError
            If the model's logits are no numbers.
        """
        request = Request.of(options, self.sampling)
        if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int | np.integer):
            if n is not None:
                raise ArgumentError("n is for one prompt, not for a list of them")
            prompts = [self._prompt_ids(cast("str", one), request.parse_special) for one in prompt]
            return [self._stream(ids, request).result() for ids in prompts]
        ids = self._prompt_ids(cast("str | Ids", prompt), request.parse_special)
        if n is None:
            return self._stream(ids, request).result()
        seeds = [(request.seed + i) % 2**64 for i in range(_checked("n", n, integer(1)))]
        with ExitStack() as opened:
            session = request.session or opened.enter_context(self._sessions.lend())
            requests = [replace(request, seed=seed, session=session) for seed in seeds]
            return [self._stream(ids, each).result() for each in requests]

    __call__ = generate

    def stream(self, prompt: str | Ids, **options: Unpack[GenerateOptions]) -> Stream:
        """Continue a text piece by piece; the arguments are those of `generate`.

        They are checked now; the prompt is evaluated when the first piece is asked for.

        Examples
        --------
        >>> for piece in model.stream("Once upon a time", max_tokens=64):  # doctest: +SKIP
        ...     print(piece.text, end="", flush=True)
        """
        request = Request.of(options, self.sampling)
        return self._stream(self._prompt_ids(prompt, request.parse_special), request)

    def chat(self, messages: Messages, **options: Unpack[ChatOptions]) -> Completion:
        """Answer a conversation.

        With the same `session` for every turn, only what is new is evaluated.

        Parameters
        ----------
        messages : sequence of mapping
            Each with ``"role"`` and ``"content"``. No content can make a control token.
        **options
            See `ChatOptions` and `GenerateOptions`; names of other tools are understood.

        Raises
        ------
        TemplateError
            If the model has no chat template, or the template refuses the messages.
        ArgumentError, ContextOverflow, NumericError
            As in `generate`.
        """
        return self.stream_chat(messages, **options).result()

    def stream_chat(self, messages: Messages, **options: Unpack[ChatOptions]) -> Stream:
        """Answer a conversation piece by piece; the arguments are those of `chat`."""
        going_on = options.pop("continue_final_message", False)
        variables = options.pop("chat_template_kwargs", None) or {}
        tools = options.pop("tools", None)
        request = Request.of(options, self.sampling)
        if request.parse_special:
            raise ArgumentError("parse_special is for prompts, not for messages of a chat")
        ids = self.apply_chat_template(
            messages, tools, not going_on, continue_final_message=going_on, **variables
        )
        return self._stream(ids, request)

    def score(
        self, text: str | Ids, *, top_logprobs: int = 0, parse_special: bool = False
    ) -> Score:
        """Say how likely the model finds each token of a text.

        Parameters
        ----------
        text : str or sequence of int
            Encoded as a prompt of `generate` is.
        top_logprobs : int
            How many of the likeliest tokens to list for each place.
        parse_special : bool
            As in `GenerateOptions`.

        Raises
        ------
        ArgumentError, ContextOverflow
            As in `generate`.
        """
        ids = self._prompt_ids(text, _checked("parse_special", parse_special, boolean))
        top = _checked("top_logprobs", top_logprobs, integer(0))
        with self._sessions.lend() as session:
            return score(session, ids, top=top)

    def _prompt_ids(self, prompt: str | Ids, parse_special: bool) -> list[int]:
        if not isinstance(prompt, str):
            return _checked_ids(prompt)
        ids = self.tokenizer.encode(prompt, parse_special=parse_special)
        if self.tokenizer.add_eos and ids:
            ids.pop()  # a text that is to be continued has not ended
        if not ids:
            raise ArgumentError("the text has no tokens, but at least one is needed")
        return ids

    def _stream(self, ids: list[int], request: Request) -> Stream:
        self._require_open()
        return Stream(
            ids,
            request,
            self.tokenizer,
            sessions=self._sessions,
            stop_ids=self.stop_ids,
            n_batch=self.n_batch,
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
            and `continue_final_message`.

        Raises
        ------
        TemplateError
            If there is no template, or it refuses the messages.
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

    def session(self, *, n_ctx: int | None = None, kv_type: str | None = None) -> Session:
        """Open a sequence of its own, to evaluate tokens by hand or to keep between calls.

        Parameters
        ----------
        n_ctx : int, optional
            Positions that it holds; by default those of the model.
        kv_type : str, optional
            How keys and values are stored; by default as given to `load`.
        """
        return self._sessions.open(None if n_ctx is None else self._checked_context(n_ctx), kv_type)

    def _checked_context(self, n_ctx: int) -> int:
        n: int = _checked("n_ctx", n_ctx, integer(1))
        if n > self.config.n_ctx_train:
            _log.warning(
                "%s: a context of %d is longer than the %d that the model was trained for",
                self.path,
                n,
                self.config.n_ctx_train,
            )
        return n

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

    def __reduce__(self) -> tuple[Any, ...]:
        return _reload, (self.path.absolute(), self._arguments)

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"n_ctx {self.n_ctx}, {self.compute}"
        return f"<Model {str(self.path)!r}, {self.config.architecture}, {state}>"


def _reload(path: Path, arguments: _Arguments) -> Model:
    return Model(path, **arguments)


def _checked(name: str, value: object, check: Check) -> Any:  # noqa: ANN401 - as checked
    try:
        return check(value)
    except ValueError as error:
        raise ArgumentError(f"{name}={value!r} {error}") from None


def _checked_ids(ids: Ids) -> list[int]:
    plain = ids.tolist() if isinstance(ids, np.ndarray) else ids
    if isinstance(plain, (list, tuple)) and plain:
        try:
            return list(token_ids(plain))
        except ValueError as error:
            raise ArgumentError(f"prompt {error}") from None
    what = "an empty one" if plain == [] else type(ids).__name__
    raise ArgumentError(f"a prompt is a text or a list of token ids, not {what}")
