"""Progress of long work, on standard error and only in a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from dask_elastic.cli.terminal.console import console

Advance = Callable[[float], None]
"""Takes how much is done in all."""


@contextmanager
def progress_bar(text: str, total: float | None = None) -> Iterator[Advance]:
    """Show a bar, and the time that has passed, while the block runs; erase both after it.

    Parameters
    ----------
    text : str
        What is being done.
    total : float, optional
        How much there is to do. Without it the bar shows only that work goes on.

    Yields
    ------
    callable
        Moves the bar to the amount that is done.
    """
    if not sys.stderr.isatty():
        yield lambda done: None
        return
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

    percent = [] if total is None else [TaskProgressColumn()]
    columns = (TextColumn("{task.description}", markup=False), BarColumn(bar_width=None), *percent, TimeElapsedColumn())
    # Redirected streams would be other objects than those that a script or a logger has kept.
    with Progress(
        *columns,
        console=console(sys.stderr),
        transient=True,
        expand=True,
        redirect_stdout=False,
        redirect_stderr=False,
    ) as bar:
        task = bar.add_task(text, total=total)
        yield lambda done: bar.update(task, completed=done)
