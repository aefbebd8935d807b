"""Commands whose help text is their docstring; indented examples are not re-wrapped."""

from __future__ import annotations

import inspect
from typing import Any

import click

KEPT = "\b"
"""The mark before a paragraph that click must not wrap."""


def help_text(docstring: str) -> str:
    r"""Prepare a docstring so that click wraps its prose but not its examples.

    Parameters
    ----------
    docstring : str
        Paragraphs; those with an indented line are examples.

    Returns
    -------
    str
        The text, with click's mark before each example.

    Examples
    --------
    >>> help_text("End jobs.\n\nFor example:\n    dask elastic stop b")
    'End jobs.\n\n\x08\nFor example:\n    dask elastic stop b'
    """
    paragraphs = inspect.cleandoc(docstring).split("\n\n")
    return "\n\n".join(
        f"{KEPT}\n{part}" if any(line.startswith(" ") for line in part.splitlines()) else part for part in paragraphs
    )


class Command(click.Command):
    """A command whose help is its docstring, as `help_text` prepares it.

    Parameters
    ----------
    *arguments, **options
        As `click.Command`.
    """

    def __init__(self, *arguments: Any, **options: Any):
        super().__init__(*arguments, **options)
        self.help = help_text(self.help or "")
