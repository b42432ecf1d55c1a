"""The command class that all commands share.

It adds ``-v``, and the flags of llama.cpp that mean nothing here: people paste command lines from
there, and what only concerns a graphics card must not stop them. It takes a model that is the first
word (see `words`), and lets nothing that was given be lost without a word.
"""

import os
from collections.abc import Mapping
from typing import Any

import click
from click.core import ParameterSource

from rml.cli.console import say, show_log
from rml.cli.options import VARIABLES
from rml.cli.words import first_word, looks_like_repository, names_a_model

__all__ = ["Command"]

# llama.cpp's flags that have no meaning here: values they take, and whether it is worth a notice
# (not for what rml does anyway).
_IGNORED: Mapping[tuple[str, ...], tuple[int, bool]] = {
    ("-ngl", "--gpu-layers", "--n-gpu-layers"): (1, True),
    ("-fa", "--flash-attn"): (1, True),
    ("-sm", "--split-mode"): (1, True),
    ("-ts", "--tensor-split"): (1, True),
    ("-mg", "--main-gpu"): (1, True),
    ("-dev", "--device"): (1, True),
    ("-ot", "--override-tensor"): (1, True),
    ("-ncmoe", "--n-cpu-moe"): (1, True),
    ("-cmoe", "--cpu-moe"): (0, True),
    ("-nkvo", "--no-kv-offload"): (0, True),
    ("--no-op-offload",): (0, True),
    ("-ub", "--ubatch-size"): (1, True),
    ("-tb", "--threads-batch"): (1, True),
    ("--numa",): (1, True),
    ("--mlock",): (0, True),
    ("-co", "--color"): (1, False),
    ("--jinja",): (0, False),
    ("--no-warmup",): (0, False),
    ("-no-cnv", "--no-conversation"): (0, False),
    ("-cnv", "--conversation"): (0, False),
    ("--no-display-prompt",): (0, False),
}
# Some of these may leave their value out.
_SWITCHES = ("-fa", "--flash-attn", "-co", "--color")
_SWITCH_VALUES = {"on", "off", "auto", "0", "1", "true", "false", "enabled", "disabled"}


# Options whose value is a text: of two, neither may be lost. (Of two settings the last one wins.)
_TEXTS = ("prompt", "system")


class Command(click.Command):
    """A command that also takes ``-v``, the model as its first word, and llama.cpp's other flags.

    Parameters
    ----------
    only_model : bool
        Whether the command takes no other word, so that the first one is the model whatever it is.
    """

    def __init__(self, *args: Any, only_model: bool = False, **kwargs: Any) -> None:  # noqa: ANN401 - click's own arguments
        super().__init__(*args, **kwargs)
        self._only_model = only_model
        taken = {flag for parameter in self.params for flag in parameter.opts}
        for flags, (values, _notice) in _IGNORED.items():
            free = [flag for flag in flags if flag not in taken]
            if free:
                self.params.append(
                    click.Option(
                        [f"ignored_{flags[-1].lstrip('-').replace('-', '_')}", *free],
                        is_flag=None if values else True,
                        multiple=bool(values),
                        hidden=True,
                        expose_value=False,
                        callback=_collect,
                    )
                )
        self.params.append(
            click.Option(
                ["-v", "--verbose"],
                is_flag=True,
                expose_value=False,
                callback=_verbose,
                help="Show the log, and the traceback of an error.",
            )
        )

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        """Show the model before the other words."""
        options, *words = super().collect_usage_pieces(ctx)
        return [options, *(["[MODEL]"] if self._takes_model() else []), *words]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse; then say once which flags were ignored."""
        args = self._with_model(ctx, _with_switch_values(args))
        try:
            rest = super().parse_args(ctx, args)
        except click.BadParameter as error:
            if variable := _variable(ctx, error.param):
                message = f"{error.message} (from the environment: {variable})"
                raise click.BadParameter(message, ctx, error.param, error.param_hint) from error
            raise
        unknown = sorted(name for name in os.environ if _means_nothing(name))
        if unknown:
            say(f"rml: no flag is set by {', '.join(unknown)}")
        ignored = ctx.meta.get("rml.ignored", [])
        if ignored:
            say(f"rml: ignored, since it has no meaning here: {' '.join(ignored)}")
        return rest

    def _parse(self, ctx: click.Context, args: list[str]) -> tuple[list[str], list[str]]:
        """Return the words of a command line, and the names of its options in their order."""
        values, rest, order = self.make_parser(ctx).parse_args([*args])
        arguments = [p.name for p in self.params if isinstance(p, click.Argument)]
        words = [values.get(name) for name in arguments]
        given = [p.name for p in order if isinstance(p, click.Option)]
        return [*(word for word in words if isinstance(word, str)), *rest], given

    def _takes_model(self) -> bool:
        return any(parameter.name == "model" for parameter in self.params)

    def _with_model(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Make ``--model`` of a first word that is the model, and check the words."""
        try:
            words, given = self._parse(ctx, args)
        except click.UsageError:
            return args  # explained when it is parsed in earnest
        for name in _TEXTS:
            if given.count(name) > 1:
                raise click.UsageError(f"--{name} is given more than once", ctx)
        if not self._takes_model():
            return args
        at = None
        if "model" not in given:
            at = first_word(lambda part: self._parse(ctx, part)[0], args)
        if at is None and self._only_model and words and "model" not in given:
            at = len(args) - 1  # what follows -- can be no text here
        if at is not None and not (self._only_model or names_a_model(args[at])):
            if looks_like_repository(args[at]):
                say(f"{args[at]} is taken as text; -m {args[at]} makes it the model")
            at = None
        no_model = at is None and "model" not in given and "--" not in args
        self._check_number(ctx, words, has_model=at is not None, no_model=no_model)
        if at is None:
            return args
        if not self._only_model:
            say(f"using model {args[at]} (write -- before it if it is meant as text)")
        return [f"--model={args[at]}", *args[:at], *args[at + 1 :]]

    def _check_number(
        self, ctx: click.Context, words: list[str], *, has_model: bool, no_model: bool
    ) -> None:
        """Refuse more words than the command takes, and say what they may have been meant as.

        `no_model` says that the first word could have named the model and does not.
        """
        takes = sum(isinstance(parameter, click.Argument) for parameter in self.params)
        if len(words) - has_model <= takes:
            return
        if self._only_model:
            raise click.UsageError("give one model: with -m, or as the only word", ctx)
        lost = words[takes + has_model :]
        advice = "a text of several words goes in quotes"
        if no_model and names_a_model(lost[0]):
            advice = f"a model is the first word, or given with -m: {self.name} {lost[0]} ..."
        elif no_model:
            advice += f", and {words[0]} is no model on this machine (rml list)"
        raise click.UsageError(f"unexpected: {' '.join(lost)}; {advice}", ctx)


def _means_nothing(variable: str) -> bool:
    """Whether an environment variable looks as if it set a flag, and sets none of any command."""
    flags = (flag for flags in _IGNORED for flag in flags)
    ignored = {flag.lstrip("-").replace("-", "_").upper() for flag in flags}
    name = variable.removeprefix("RML_ARG_")
    return name != variable and name not in VARIABLES | ignored


def _variable(ctx: click.Context, parameter: click.Parameter | None) -> str | None:
    """Name the environment variable that a parameter's value comes from."""
    if parameter is None or parameter.name is None:
        return None
    if ctx.get_parameter_source(parameter.name) is not ParameterSource.ENVIRONMENT:
        return None
    variables = [parameter.envvar] if isinstance(parameter.envvar, str) else parameter.envvar or ()
    return next((name for name in variables if os.environ.get(name)), None)


def _with_switch_values(args: list[str]) -> list[str]:
    """Add the value that a switch may leave out, or the parser would take the next word for it."""
    result = []
    for i, arg in enumerate(args):
        result.append(arg)
        following = args[i + 1].lower() if i + 1 < len(args) else ""
        if arg in _SWITCHES and following not in _SWITCH_VALUES:
            result.append("on")
    return result


def _collect(ctx: click.Context, parameter: click.Parameter, value: Any) -> None:  # noqa: ANN401 - click's callback
    flags = next(flags for flags in _IGNORED if parameter.opts[0] in flags)
    if value and _IGNORED[flags][1]:
        ctx.meta.setdefault("rml.ignored", []).append(parameter.opts[0])


def _verbose(ctx: click.Context, _parameter: click.Parameter, value: bool) -> None:
    if value:
        ctx.meta["rml.verbose"] = True
        show_log()
