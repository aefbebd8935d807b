"""The consoles that commands write to: rich in a terminal, plain text elsewhere.

Rich is imported when something is shown. A command that only starts a job or prints JSON does not need it.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO, TypeAlias

import click

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    Shown: TypeAlias = RenderableType | tuple[str, str]
    """A text, a text and its style, or another object that rich can render; styles are such as ``"bold red"``."""

UNLIMITED = 1_000_000_000
"""Width outside a terminal: a program that reads the output needs whole values, each row on one line."""


def console(stream: TextIO | None = None) -> Console:
    """Return a console that renders for a terminal, in its full width, and in colour unless ``NO_COLOR`` is set.

    Parameters
    ----------
    stream : file, optional
        The output; standard output by default.
    """
    from rich.console import Console

    stream = stream or sys.stdout
    return Console(file=stream, force_terminal=stream.isatty(), highlight=False, markup=False, emoji=False)


def plain_text(*shown: Shown) -> str:
    """Render for a file or a pipe: no colour, no limit of the width, no spaces at the end of a line.

    Parameters
    ----------
    *shown : renderables
        Texts, tables and trees; one below the other.

    Returns
    -------
    str
        The lines.

    Examples
    --------
    >>> from dask_elastic.cli.terminal.console_table import ConsoleTable
    >>> print(plain_text(ConsoleTable(["job", "rows"], [["word-count", "1,000"], ["b", "7"]])))
    job          rows
    word-count  1,000
    b               7
    """
    from rich.console import Console

    drawn = Console(
        file=io.StringIO(), force_terminal=False, color_system=None, width=UNLIMITED, highlight=False, markup=False,
        emoji=False, legacy_windows=False,
    )  # fmt: skip
    with drawn.capture() as captured:
        drawn.print(*_renderables(shown), sep="\n")
    return "\n".join(line.rstrip() for line in captured.get().splitlines())


def show(*shown: Shown) -> None:
    """Print on standard output: for a terminal if it is one, else as plain text.

    Parameters
    ----------
    *shown : renderables
        Texts, tables and trees; one below the other.
    """
    if sys.stdout.isatty():
        console().print(*_renderables(shown), sep="\n")
    else:
        click.echo(plain_text(*shown))


@contextmanager
def live_view() -> Iterator[Callable[..., None]]:
    """Show the newest of several views: in a terminal in place of the previous one, elsewhere below it.

    Yields
    ------
    callable
        Shows a view; takes the same arguments as `show`.
    """
    if not sys.stdout.isatty():
        yield show
        return
    from rich.console import Group
    from rich.live import Live

    with Live(console=console(), auto_refresh=False, redirect_stdout=False, redirect_stderr=False) as live:
        yield lambda *shown: live.update(Group(*_renderables(shown)), refresh=True)


def _renderables(shown: Iterable[Shown]) -> Iterator[RenderableType]:
    from rich.text import Text

    return (Text(*one) if isinstance(one, tuple) else one for one in shown)
