"""Restoring the state of an operator from a checkpoint, also to another number of executors."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dask_elastic.checkpoint import state_file
from dask_elastic.checkpoint.chain import FULL, Chain
from dask_elastic.checkpoint.changed_aggregates import ChangedAggregates
from dask_elastic.checkpoint.folder import CheckpointFolder
from dask_elastic.checkpoint.manifest import OperatorState
from dask_elastic.checkpoint.other_placing import OtherPlacing
from dask_elastic.checkpoint.regrouping import Regrouping
from dask_elastic.checkpoint.state_file import StateFile, StateHeader
from dask_elastic.state.codec import IDENTITY
from dask_elastic.state.store import KeyedStore
from dask_elastic.vocab.arrow_arrays import array_of, numpy_of
from dask_elastic.vocab.errors import CheckpointCorrupt, CheckpointError

SHARD = IDENTITY.index("__shard")
"""The column of encoded state with the shard of each row."""


@dataclass
class Restored:
    """What an executor continues with, apart from the rows of its state.

    Parameters
    ----------
    chain : Chain
        The chain for the executor's next cut.
    input_schema : Schema or None
        The schema of the executor's input; None if it had no rows before the checkpoint.
    event_time : int or None
        The event time up to which all of its windows are closed.
    """

    chain: Chain
    input_schema: pa.Schema | None = field(default=None)
    event_time: int | None = None


def restore_executor(
    folder: CheckpointFolder,
    state: OperatorState,
    executor: int,
    executors: int,
    store: KeyedStore,
    changed: ChangedAggregates | None = None,
    placing: OtherPlacing | None = None,
    groups: Collection[int] | None = None,
) -> Restored:
    """Install the state of one executor.

    Parameters
    ----------
    folder : CheckpointFolder
        The job's folder.
    state : OperatorState
        The operator's part of the manifest.
    executor : int
        The executor.
    executors : int
        The number of executors that the operator has now.
    store : KeyedStore
        An empty store, whose shards no task owns yet.
    changed : ChangedAggregates, optional
        Converts the state, if the operator's aggregates have changed.
    placing : OtherPlacing, optional
        Where the keys are now, if that is not decided as it was.
    groups : collection of int, optional
        The key groups that the executor owns now; only where these move.

    Returns
    -------
    Restored
        The chain to continue with, and the schema of the input.

    Raises
    ------
    CheckpointCorrupt
        When a file is missing or damaged.
    CheckpointError
        When an object of the state cannot be loaded; names the operator and the classes.

    Examples
    --------
    >>> store = KeyedStore(4, lambda hashes: (hashes % 4).astype(int))
    >>> state = OperatorState("planes", ("plane",), 1, 4, (Chain(4),))
    >>> restore_executor(CheckpointFolder("memory://restore"), state, 0, 1, store).chain
    Chain(shards=4, links=(), most=32)
    """
    if placing is not None:
        return _restore_placed(folder, state, executor, store, changed, placing)
    # Of computes that ran apart, each may have been divided otherwise among as many executors.
    if groups is not None and (executors != state.executors or {*groups} != {*state.owned[executor]}):
        return _restore_groups(folder, state, groups, store, changed)
    regrouping = Regrouping(state.executors, state.shards, executors)
    kept = regrouping.identical and changed is None
    restored = Restored(Chain(store.shards), event_time=event_time_of(state, regrouping.sources(executor)))
    for header, batch in state_batches(folder, state, executor, executors):
        restored.input_schema = header.input_schema or restored.input_schema
        if batch is not None:
            install(store, header, batch, changed)
    # Files of other executors or other aggregates cannot be continued.
    restored.chain = state.chains[executor] if kept else _chain_of(store)
    return restored


def _chain_of(store: KeyedStore) -> Chain:
    """Return the chain of restored state of which no file can be used."""
    # A cut of a store without any state writes nothing, so nothing may be missing before it.
    return Chain(store.shards) if store.key_schema is None else Chain.without_files(store.shards)


def _restore_groups(
    folder: CheckpointFolder,
    state: OperatorState,
    groups: Collection[int],
    store: KeyedStore,
    changed: ChangedAggregates | None,
) -> Restored:
    """Install the state of key groups from the files of those that owned them: other executors own them now."""
    taken = {source: {*groups}.intersection(owned) for source, owned in enumerate(state.owned)}
    sources = [source for source, some in taken.items() if some]
    restored = Restored(Chain(store.shards), event_time=event_time_of(state, sources or [*taken]))
    for source in sources:
        wanted = np.zeros(state.shards, np.bool_)
        # What a former owner of a group has written of it is older.
        wanted[[*taken[source]]] = True
        for header, batch in source_batches(folder, state, source):
            restored.input_schema = header.input_schema or restored.input_schema
            if batch is not None:
                kept = batch.filter(array_of(wanted[numpy_of(batch.column(SHARD))]))
                if kept.num_rows:
                    install(store, header, kept, changed)
    restored.chain = _chain_of(store)
    return restored


def _restore_placed(
    folder: CheckpointFolder,
    state: OperatorState,
    executor: int,
    store: KeyedStore,
    changed: ChangedAggregates | None,
    placing: OtherPlacing,
) -> Restored:
    """Install what an executor has now of the state of all executors."""
    sources = list(range(state.executors))
    restored = Restored(Chain(store.shards), event_time=event_time_of(state, sources))
    # A key was in one executor, whose files are read in their order.
    for source in sources:
        for header, batch in source_batches(folder, state, source):
            restored.input_schema = header.input_schema or restored.input_schema
            if batch is not None and (placed := placing.of_executor(batch, executor)).num_rows:
                install(store, header, placed, changed)
    restored.chain = _chain_of(store)
    return restored


def install(
    store: KeyedStore, header: StateHeader, batch: pa.RecordBatch, changed: ChangedAggregates | None = None
) -> None:
    """Install rows of a file.

    Parameters
    ----------
    store : KeyedStore
        Where to.
    header : StateHeader
        The file's header.
    batch : RecordBatch
        The rows.
    changed : ChangedAggregates, optional
        As for `restore_executor`.

    Raises
    ------
    CheckpointError
        When an object of the state cannot be loaded; names the operator and the classes.

    Examples
    --------
    >>> store = KeyedStore(1, lambda hashes: (hashes * 0).astype(int))
    >>> install(store, StateHeader("planes", 0, 1, 1, 1, frozenset({0})), pa.record_batch({"plane": ["N1"]}))
    Traceback (most recent call last):
        ...
    dask_elastic.vocab.errors.SchemaMismatch: a batch with the columns ['plane'] is not encoded state; ...
    """
    try:
        store.install(batch if changed is None else changed.batch(header, batch))
    except CheckpointError:
        raise
    except Exception as error:
        # Loading a pickled object may raise any exception.
        if not header.classes:
            raise
        raise header.cannot_load(error) from error


def state_batches(
    folder: CheckpointFolder, state: OperatorState, executor: int, executors: int
) -> Iterator[tuple[StateHeader, pa.RecordBatch | None]]:
    """Yield the rows of an executor's state in the order in which they are installed.

    Parameters
    ----------
    folder, state, executor, executors
        As for `restore_executor`.

    Yields
    ------
    tuple of StateHeader and (RecordBatch or None)
        First each file's header with None; then the file's rows, without those that a later file replaces. Shards
        are numbered as the executor has them now.

    Raises
    ------
    CheckpointCorrupt
        When a file is missing or damaged.
    """
    regrouping = Regrouping(state.executors, state.shards, executors)
    for source in regrouping.sources(executor):
        for header, batch in source_batches(folder, state, source):
            if batch is None or regrouping.identical:
                yield header, batch
                continue
            kept = _of_executor(batch, regrouping, executor, source)
            if kept.num_rows:
                yield header, kept


def source_batches(
    folder: CheckpointFolder, state: OperatorState, source: int
) -> Iterator[tuple[StateHeader, pa.RecordBatch | None]]:
    """Yield the rows that one executor has written, in the order in which they are installed; reads each file once.

    Parameters
    ----------
    folder, state
        As for `restore_executor`.
    source : int
        The executor that has written them.

    Yields
    ------
    tuple of StateHeader and (RecordBatch or None)
        First each file's header with None; then the file's rows, without those that a later file replaces.

    Raises
    ------
    CheckpointCorrupt
        When a file is missing or damaged.
    """
    chain = state.chains[source]
    for position, link in enumerate(chain.links):
        assert link.file is not None, "a manifest has only links that are written"
        current = ~_superseded(chain, position)
        file = state_file.read(folder, link.file)
        _check_header(file, folder.where(link.file.path), state, source)
        yield file.header, None
        for batch in file.batches():
            kept = current[numpy_of(batch.column(SHARD))]
            if kept.any():
                yield file.header, batch if kept.all() else batch.filter(array_of(kept))


def event_time_of(state: OperatorState, sources: list[int]) -> int | None:
    """Return the earliest event time of some executors; None if one has none."""
    times = [state.event_times[source] for source in sources] if state.event_times else []
    known = [time for time in times if time is not None]
    return min(known) if known and len(known) == len(times) else None


def component_event_time(times: Iterable[int | None]) -> int | None:
    """Return the event time of computes that continue in one task, from those of a checkpoint.

    Parameters
    ----------
    times : iterable of (int or None)
        The event time of each, in microseconds; None if it has none.

    Returns
    -------
    int or None
        The newest one.

    Notes
    -----
    If they ran apart, all had got the same watermark before the barrier, and each notes only those at which it has
    something to do: the ends of its windows, or none. By the newest time, a row is late that was late before, and no
    other.

    Examples
    --------
    >>> component_event_time([3_600, None, 4_200])
    4200
    """
    return max((time for time in times if time is not None), default=None)


def _superseded(chain: Chain, position: int) -> npt.NDArray[np.bool_]:
    """Return the shards that files after a position contain in full."""
    found = np.zeros(chain.shards, np.bool_)
    for link in chain.links[position + 1 :]:
        found |= link.counts == FULL
    return found


def _check_header(file: StateFile, where: str, state: OperatorState, source: int) -> None:
    wanted = (state.name, source, state.executors, state.shards)
    header = file.header
    found = (header.operator, header.executor, header.executors, header.shards)
    if found != wanted:
        texts = [f"state of {name!r}, executor {i} of {y} with {z} shards" for name, i, y, z in (wanted, found)]
        raise CheckpointCorrupt(where, *texts)


def _of_executor(batch: pa.RecordBatch, regrouping: Regrouping, executor: int, source: int) -> pa.RecordBatch:
    after = regrouping.shards_of(executor, source, numpy_of(batch.column(SHARD)))
    kept = after >= 0
    batch = batch.set_column(SHARD, batch.schema.field(SHARD), array_of(after))
    return batch if kept.all() else batch.filter(array_of(kept))
