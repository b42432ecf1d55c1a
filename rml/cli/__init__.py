"""The command line: one file a command; the only place that prints."""

from rml.cli.app import cli, main

__all__ = ["cli", "main"]
