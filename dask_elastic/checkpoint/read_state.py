"""Reading the state of an operator from a checkpoint, without a job or a cluster."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from dask_elastic.checkpoint.pickled import Pickled
from dask_elastic.checkpoint.saved_state import SavedState
from dask_elastic.topology.operators import Compute
from dask_elastic.topology.timer import Timer


def read_state(
    url: str | os.PathLike[str],
    operator: str,
    checkpoint: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
    *,
    columns: Sequence[str] | None = None,
) -> pa.Table:
    """Read the state of an operator from a checkpoint; neither the job nor a cluster need to run.

    Parameters
    ----------
    url : str or path
        The job's folder of checkpoints, or that of a savepoint.
    operator : str
        The name of a stateful operator.
    checkpoint : int, optional
        The number of the checkpoint; the newest one that is not damaged by default.
    storage_options : mapping, optional
        Options for fsspec, such as credentials.
    columns : sequence of str, optional
        Key columns and results to return, in this order; all by default.

    Returns
    -------
    Table
        One row per key: the key columns, then the results, as `Job.state` returns them. State that had expired when
        the checkpoint began is omitted.

    Raises
    ------
    NoCheckpoint
        When the folder has no such checkpoint.
    CheckpointCorrupt
        When the checkpoint is damaged.
    CheckpointError
        When the storage fails, or classes that the state needs cannot be imported.
    UnknownOperator
        When the checkpoint has no state of the operator.
    KeyError
        When there is no such column.

    Notes
    -----
    A checkpoint has pickled objects, and loading them runs code: read only folders that you trust.

    Examples
    --------
    >>> import dask_elastic as de
    >>> de.read_state("memory://empty", "per_plane")
    Traceback (most recent call last):
        ...
    dask_elastic.vocab.errors.NoCheckpoint: memory://empty has no complete checkpoint. Check the URL: ...
    """
    saved = SavedState.open(url, operator, checkpoint, storage_options)
    return pa.concat_tables(saved.scan(range(saved.executors), saved.executors, columns))


def scan_state(
    url: str | os.PathLike[str],
    operator: str,
    checkpoint: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
    *,
    columns: Sequence[str] | None = None,
    parts: int | None = None,
) -> Iterator[pa.Table]:
    """Read the state of an operator from a checkpoint part by part, for state that does not fit into memory.

    Parameters
    ----------
    url, operator, checkpoint, storage_options, columns
        As for `read_state`.
    parts : int, optional
        The number of parts, at most that of the operator's shards. By default parts have about 64 MB of files. Each
        file is read once, also if several parts need it: rows of later parts wait in memory, up to 64 MB, and beyond
        that in the folder for temporary files (``TMPDIR``).

    Yields
    ------
    Table
        The rows of some keys, as `read_state` returns them.

    Raises
    ------
    ValueError
        When there are not so many shards.
    CheckpointError, UnknownOperator, KeyError
        As for `read_state`.

    Examples
    --------
    >>> import dask_elastic as de
    >>> for part in de.scan_state("memory://empty", "per_plane", columns=["plane"]):
    ...     print(part.num_rows)
    Traceback (most recent call last):
        ...
    dask_elastic.vocab.errors.NoCheckpoint: memory://empty has no complete checkpoint. Check the URL: ...
    """
    saved = SavedState.open(url, operator, checkpoint, storage_options)
    count = saved.parts if parts is None else parts
    yield from saved.scan(range(count), count, columns)


def reading_of(operator: Compute) -> Pickled:
    """Return what a manifest needs so that the state of an operator can be read as values.

    Parameters
    ----------
    operator : Compute
        The operator.

    Returns
    -------
    Pickled
        The operator without its function, so that reading its state needs no user code but that of user-defined
        aggregates.

    Raises
    ------
    CheckpointError
        When an aggregate cannot be pickled.
    """
    if operator.aggregates is not None or operator.join is not None:
        return Pickled.of(operator)
    timers = {name: Timer(_no_function, timer.clock) for name, timer in (operator.timers or {}).items()}
    return Pickled.of(replace(operator, logic=_no_function, timers=timers or None))


def _no_function(batch: pa.RecordBatch, state: Any) -> None:
    """Stand in for the function of an operator whose state is only read."""
    raise AssertionError("an operator that was loaded to read its state processes no rows")
