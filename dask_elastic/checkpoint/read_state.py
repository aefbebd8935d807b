"""Reading the state of an operator from a checkpoint, without a job or a cluster."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa

from dask_elastic.checkpoint.catalog import Catalog
from dask_elastic.checkpoint.folder import CheckpointFolder
from dask_elastic.checkpoint.manifest import Manifest, OperatorState
from dask_elastic.checkpoint.pickled import Pickled
from dask_elastic.checkpoint.restore import restore_executor
from dask_elastic.routing.keyspace import KeySpace
from dask_elastic.state.results import empty_state, state_table
from dask_elastic.state.store import KeyedStore
from dask_elastic.topology.operators import Compute
from dask_elastic.topology.timer import Timer
from dask_elastic.vocab.errors import CheckpointError


def read_state(
    url: str | os.PathLike[str],
    operator: str,
    checkpoint: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> pa.Table:
    """Read the state of an operator from a checkpoint; neither the job nor a cluster need to run.

    Parameters
    ----------
    url : str or path
        The job's folder of checkpoints.
    operator : str
        The name of a stateful operator.
    checkpoint : int, optional
        The number of the checkpoint; the newest one that is not damaged by default.
    storage_options : mapping, optional
        Options for fsspec, such as credentials.

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
    folder = CheckpointFolder(url, storage_options)
    manifest = Catalog(folder).load(checkpoint)
    return operator_table(folder, manifest, operator)


def operator_table(folder: CheckpointFolder, manifest: Manifest, operator: str) -> pa.Table:
    """Return the state of an operator in a checkpoint, with one row per key.

    Parameters
    ----------
    folder : CheckpointFolder
        The job's folder.
    manifest : Manifest
        The checkpoint.
    operator : str
        The name of a stateful operator.

    Returns
    -------
    Table
        As `read_state` returns it.

    Raises
    ------
    CheckpointError
        When a file is damaged, or classes that the state needs cannot be imported.
    UnknownOperator
        When the checkpoint has no state of the operator.
    """
    state = manifest.state(operator)
    if state.reading is None:
        raise CheckpointError(
            f"checkpoint {manifest.number} of job {manifest.job!r} does not say how the state of operator "
            f"{operator!r} is read. Resume the job, and read the state with Job.state."
        )
    definition: Compute = state.reading.load(f"the definition of operator {operator!r}")
    tables = [
        table
        for executor in range(state.executors)
        if (table := _table(folder, state, definition, executor, manifest.started)) is not None
    ]
    return pa.concat_tables(tables) if tables else empty_state(definition, None)


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
    if operator.aggregates is not None:
        return Pickled.of(operator)
    timers = {name: Timer(_no_function, timer.clock) for name, timer in (operator.timers or {}).items()}
    return Pickled.of(replace(operator, logic=_no_function, timers=timers or None))


def _no_function(batch: pa.RecordBatch, state: Any) -> None:
    """Stand in for the function of an operator whose state is only read."""
    raise AssertionError("an operator that was loaded to read its state processes no rows")


def _table(
    folder: CheckpointFolder, state: OperatorState, definition: Compute, executor: int, now: float
) -> pa.Table | None:
    space = KeySpace(state.executors, state.shards)
    store = KeyedStore(state.shards, space.shard_of)
    schema = restore_executor(folder, state, executor, state.executors, store).input_schema
    if schema is None or store.key_schema is None:
        return None
    keys, values = store.rows()
    return state_table(definition, schema, keys, values, now)
