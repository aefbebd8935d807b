"""Recorded snapshots in files."""

from __future__ import annotations

from collections.abc import Iterable
from os import PathLike
from pathlib import Path

from dask_elastic.control.recording import dumps, loads
from dask_elastic.vocab.snapshot import Snapshot


def save_snapshots(snapshots: Iterable[Snapshot], path: str | PathLike[str]) -> None:
    """Write snapshots to a file, a line each.

    Parameters
    ----------
    snapshots : iterable of Snapshot
        As `Job.snapshots` returns them.
    path : str or path-like
        The file; an existing one is replaced.
    """
    Path(path).write_bytes(dumps(snapshots))


def load_snapshots(path: str | PathLike[str]) -> list[Snapshot]:
    """Read snapshots from a file that `save_snapshots` wrote.

    Parameters
    ----------
    path : str or path-like
        The file.

    Raises
    ------
    PlanningError
        If a line is not a snapshot; names the line.
    """
    return loads(Path(path).read_bytes())
