"""The command class that all commands share: ``-v``, and flags of llama.cpp that mean nothing here.

People paste command lines from llama.cpp; what only concerns a graphics card must not stop them.
"""

from collections.abc import Mapping
from typing import Any

import click

from rml.cli.console import say, show_log

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
    ("--no-mmap",): (0, True),
    ("--mmap",): (0, False),
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


class Command(click.Command):
    """A command that also takes ``-v`` and the flags of llama.cpp that mean nothing here."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - click's own arguments
        super().__init__(*args, **kwargs)
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

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse; then say once which flags were ignored."""
        rest = super().parse_args(ctx, _with_switch_values(args))
        ignored = ctx.meta.get("rml.ignored", [])
        if ignored:
            say(f"rml: ignored, since it has no meaning here: {' '.join(ignored)}")
        return rest


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
