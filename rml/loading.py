"""From a path to a `Model`: open the files, configure the decoder, read the defaults."""

import logging
import os
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rml.engine.context import (
    checked_context,
    context_within,
    default_context,
    default_kv_memory,
)
from rml.engine.engine import Engine
from rml.engine.sessions import Sessions
from rml.errors import ArgumentError
from rml.files import Checkpoint, open_checkpoint
from rml.files.locate import locate
from rml.files.paths import is_folder
from rml.generation.chat import ChatPrompts
from rml.generation.defaults import generation_defaults
from rml.generation.request import canonical
from rml.llm.config import ModelConfig
from rml.llm.decoder import DecoderLM
from rml.memory_room import out_of_memory
from rml.model import Model
from rml.ranges import boolean, checked, integer, shown
from rml.tokenizers import Tokenizer, load_tokenizer
from rml.tokenizers.end_tokens import within
from rml.tokenizers.template_source import is_jinja

if TYPE_CHECKING:
    from rml.tokenizers import ChatTemplate

__all__ = ["load"]

_log = logging.getLogger("rml")

# Names that other tools give to arguments of `load`.
_ALIASES = {
    "context_length": "n_ctx",
    "max_context": "n_ctx",
    "num_ctx": "n_ctx",
    "threads": "n_threads",
}


def load(
    path: str | os.PathLike[str],
    *,
    n_threads: int | None = None,
    compute: str = "int8x2",
    n_ctx: int | None = None,
    n_batch: int = 512,
    kv_type: str = "f16",
    kv_memory: int | None = None,
    prefix_cache: bool = True,
    mmap: bool = True,
    chat_template: "str | os.PathLike[str] | ChatTemplate | None" = None,
    pre: str | None = None,
    **other_names: Any,  # noqa: ANN401 - checked as what they stand for
) -> Model:
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
        Most tokens of prompt and completion together; by default the model's own context, cut to
        what the machine, its control group and the limits of the process (``ulimit -v``) hold. It
        costs memory where it is used, but one that is given must fit as a whole.
    n_batch : int
        Tokens of a prompt that are evaluated at a time: the grain of progress, and of Ctrl-C.
    kv_type : str
        How keys and values are stored: ``"f16"``, ``"f32"`` or ``"int8"``.
    kv_memory : int, optional
        Bytes that keys and values of all sequences together may take; by default three quarters of
        the memory that there is. It is taken when it is used.
    prefix_cache : bool
        Whether requests share what was evaluated of common beginnings: the turns of a chat, or
        questions about one text, evaluate only what is new. It is kept for later ones in up to all
        of a `kv_memory` that is given, else in a quarter of it, and given up when others need the
        memory. Results do not depend on it.
    mmap : bool
        Map the weights: they are read where they are used, shared with other processes, and the
        files must stay as they are while the model is in use (a change is an error at the next
        step; to replace a model, rename a new file to its name). With False they are read into
        this process's own memory, once, and the files may change or go. Same results.
    chat_template : str, path-like or ChatTemplate, optional
        What to use instead of the model's template: the name of another one of the model's or of
        one that rml brings (``"chatml"``), a file, Jinja source, or a template.
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
    OutOfMemory
        If `n_ctx` or a copy of the weights needs more memory than there is, or the process may not
        map the file.
    TemplateError
        If the file of a chat template cannot be read, or is none.

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
        "kv_memory": kv_memory,
        "prefix_cache": prefix_cache,
        "mmap": mmap,
        "chat_template": chat_template,
        "pre": pre,
    }
    for name, value in canonical(other_names, arguments, _ALIASES).items():
        if arguments[name] is not None:
            raise ArgumentError(f"{name} was given twice, once under another name")
        arguments[name] = value
    return _open(locate(path), arguments)


def _open(path: Path, arguments: dict[str, Any]) -> Model:
    arguments["n_batch"] = checked("n_batch", arguments["n_batch"], integer(1))
    for name in ("prefix_cache", "mmap"):
        arguments[name] = checked(name, arguments[name], boolean)
    if arguments["n_threads"] is not None:
        arguments["n_threads"] = checked("n_threads", arguments["n_threads"], integer(1))
    if not isinstance(pre := arguments["pre"], str | None):
        raise ArgumentError(f"pre={shown(pre)} must be the name of a splitting rule")
    with out_of_memory(f"loading {path}"), ExitStack() as opened:
        checkpoint = opened.enter_context(open_checkpoint(path, mmap=arguments["mmap"]))
        model = _assemble(path, checkpoint, arguments)
        opened.pop_all()
    _log.info(
        "%s: %s, %d layers, context %d, compute %s, %d threads",
        path,
        model.config.architecture,
        model.config.n_layers,
        model.n_ctx,
        model.compute,
        model.n_threads,
    )
    return model


def _assemble(path: Path, checkpoint: Checkpoint, arguments: dict[str, Any]) -> Model:
    config = ModelConfig.from_checkpoint(checkpoint)
    kv_type, n_batch, n_ctx = (arguments[name] for name in ("kv_type", "n_batch", "n_ctx"))
    given = n_ctx is not None
    if given:
        n_ctx = checked_context(n_ctx, config, path, kv_type=kv_type, n_batch=n_batch)
    decoder = DecoderLM(
        checkpoint,
        config=config,
        compute=arguments["compute"],
        n_threads=arguments["n_threads"],
        n_ctx=n_ctx,
    )
    tokenizer = _tokenizer(checkpoint, arguments["pre"])
    if n_ctx is None:
        n_ctx = default_context(
            config,
            weights=sum(tensor.n_bytes for tensor in checkpoint.tensors.values()),
            kv_type=kv_type,
            n_batch=n_batch,
        )
    kv_memory = arguments["kv_memory"]
    if kv_memory is None:
        kv_memory = default_kv_memory(config, n_ctx=n_ctx, kv_type=kv_type)
        kept_bytes = kv_memory // 4
    else:
        kv_memory = checked("kv_memory", kv_memory, integer(1))
        n_ctx = context_within(kv_memory, n_ctx, config, kv_type=kv_type, given=given)
        kept_bytes = kv_memory
    sampling = generation_defaults(checkpoint)
    prompts = ChatPrompts(tokenizer, arguments["chat_template"], str(path))
    if prompts.source is not None and is_jinja(prompts.source):
        # Where the model is unpickled, a file may be missing or another one.
        arguments = arguments | {"chat_template": prompts.source}
    return Model(
        path,
        checkpoint,
        decoder,
        tokenizer,
        sessions=Sessions(
            Engine(
                decoder,
                kv_memory=kv_memory,
                n_batch=n_batch,
                prefix_cache=arguments["prefix_cache"],
                kept_bytes=kept_bytes,
            ),
            checkpoint,
            n_ctx=n_ctx,
            kv_type=kv_type,
            reads_text_as=tokenizer.fingerprint,
        ),
        prompts=prompts,
        sampling=sampling,
        end_tokens=within(tokenizer.end_tokens, decoder.config.n_vocab, str(path)),
        n_batch=n_batch,
        again=partial(load, path.absolute(), **arguments),
    )


def _tokenizer(checkpoint: Checkpoint, pre: str | None) -> Tokenizer:
    if checkpoint.format == "gguf":
        return Tokenizer.from_gguf(checkpoint.metadata, path=str(checkpoint.path), pre=pre)
    file = checkpoint.path
    return load_tokenizer(file if is_folder(file) else file.parent)
