"""Commands whose help is their docstring, with indented lines kept as they are."""

from __future__ import annotations

import inspect
from typing import Any

import click

KEPT = "\b"
"""Before a paragraph that click is not to wrap."""


def help_text(docstring: str) -> str:
    r"""Return a docstring such that click wraps its prose but not its examples.

    Parameters
    ----------
    docstring : str
        Paragraphs; those with an indented line are examples.

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
    """A command with such a help.

    Parameters
    ----------
    *arguments, **options
        As `click.Command`.
    """

    def __init__(self, *arguments: Any, **options: Any):
        super().__init__(*arguments, **options)
        self.help = help_text(self.help or "")
