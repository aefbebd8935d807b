"""Files of recorded snapshots."""

from __future__ import annotations

from collections.abc import Iterable
from os import PathLike
from pathlib import Path

from dask_elastic.control.recording import dumps, loads
from dask_elastic.vocab.errors import PlanningError
from dask_elastic.vocab.snapshot import Snapshot


def save_snapshots(snapshots: Iterable[Snapshot], path: str | PathLike[str]) -> None:
    """Write snapshots to a file, one JSON object per line.

    Parameters
    ----------
    snapshots : iterable of Snapshot
        The snapshots, as `Job.snapshots` returns them.
    path : str or path-like
        Path of the file; an existing file is replaced.

    Examples
    --------
    Snapshots of a running job are ``job.snapshots()``; this one has no workers and no jobs:

    >>> import tempfile
    >>> recorded = [Snapshot(now=1.5, nodes=(), jobs=())]
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_snapshots(recorded, Path(folder) / "snapshots.jsonl")
    ...     load_snapshots(Path(folder) / "snapshots.jsonl")[0].now
    1.5
    """
    Path(path).write_bytes(dumps(snapshots))


def load_snapshots(path: str | PathLike[str]) -> list[Snapshot]:
    """Read snapshots from a file that `save_snapshots` wrote, for example to pass them to `dask_elastic.replay`.

    Parameters
    ----------
    path : str or path-like
        Path of the file.

    Returns
    -------
    list of Snapshot
        In the order of the file.

    Raises
    ------
    PlanningError
        If the file is not such a file, or is damaged; names it and the line.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "snapshots.jsonl"
    ...     save_snapshots([Snapshot(now=1.5, nodes=(), jobs=())], path)
    ...     load_snapshots(path)
    [Snapshot(now=1.5, nodes=(), jobs=())]
    """
    try:
        return loads(Path(path).read_bytes())
    except PlanningError as error:
        raise PlanningError(f"{path}: {error}") from error
