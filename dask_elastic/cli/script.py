"""Runs a user's script as ``python SCRIPT ARGS`` does."""

from __future__ import annotations

import runpy
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

import click

from dask_elastic.vocab.errors import ElasticError


@contextmanager
def environment(script: Path, arguments: Sequence[str]) -> Iterator[None]:
    """Set the arguments and the import path that a script expects, and restore them after the block.

    Processes started within the block inherit the path, so that workers too find the modules beside the script.

    Parameters
    ----------
    script : Path
        The script.
    arguments : sequence of str
        The script's arguments on the command line.
    """
    argv, path = sys.argv, sys.path
    sys.argv = [str(script), *arguments]
    sys.path = [str(script.resolve().parent), *path]
    try:
        yield
    finally:
        sys.argv, sys.path = argv, path


def run(script: Path) -> int:
    """Run a script as ``__main__`` and return its exit code.

    Parameters
    ----------
    script : Path
        The script.

    Returns
    -------
    int
        0 if the script ended normally, the code of its ``sys.exit``, or 1 if it raised.

    Raises
    ------
    click.ClickException
        If an error of dask_elastic ended the script; it names the script's line.
    """
    try:
        runpy.run_path(str(script), run_name="__main__")
    except SystemExit as exit_:
        return _exit_code(exit_)
    except ElasticError as error:
        raise click.ClickException(f"{_place(script, error.__traceback__)}: {error}") from error
    except Exception as error:  # a script may raise anything; print it as Python does
        traceback.print_exception(type(error), error, _own_frames(script, error.__traceback__))
        return 1
    return 0


def _exit_code(exit_: SystemExit) -> int:
    if exit_.code is None or isinstance(exit_.code, int):
        return exit_.code or 0
    print(exit_.code, file=sys.stderr)
    return 1


def _own_frames(script: Path, trace: TracebackType | None) -> TracebackType | None:
    """Drop the frames above the script's first; all of them if the script could not be compiled."""
    while trace is not None and trace.tb_frame.f_code.co_filename != str(script):
        trace = trace.tb_next
    return trace


def _place(script: Path, trace: TracebackType | None) -> str:
    own = [frame.lineno for frame in traceback.extract_tb(trace) if frame.filename == str(script)]
    return f"{script}, line {own[-1]}" if own else str(script)
