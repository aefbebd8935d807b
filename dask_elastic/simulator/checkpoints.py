"""Checkpoints of a simulated job: a coordinator that begins them and gives some up, and what they contain."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

import pyarrow as pa

from dask_elastic.control.checkpoint_progress import CheckpointProgress
from dask_elastic.executor.primary_state import PrimaryState
from dask_elastic.state.store import KeyedStore
from dask_elastic.vocab.identity import ExecutorId


@dataclass(frozen=True)
class SourceStanding:
    """Where an instance of a source continues.

    Parameters
    ----------
    offset : object
        The offset behind the rows that it has sent.
    ended : bool
        Whether it has sent its last row.
    event_time : int or None
        The newest event time of these rows.
    """

    offset: object = None
    ended: bool = False
    event_time: int | None = None


@dataclass(frozen=True)
class ExecutorCut:
    """The state of a compute in an executor: all of it, and what has changed since the cut before.

    Parameters
    ----------
    state : RecordBatch or None
        All keys; None before the first batch.
    changes : RecordBatch or None
        What has changed, with tombstones.
    input_schema : Schema or None
        The schema of its input.
    event_time : int or None
        The event time of its last state record.
    groups : tuple of int or None
        The key groups that the executor owned, where they change executor.
    """

    state: pa.RecordBatch | None
    changes: pa.RecordBatch | None
    input_schema: pa.Schema | None
    event_time: int | None = None
    groups: tuple[int, ...] | None = None


@dataclass(frozen=True)
class SimulatedCheckpoint:
    """A complete checkpoint.

    Parameters
    ----------
    number : int
        Its number.
    sources : dict of ExecutorId to SourceStanding
        Where the sources continue.
    executors : dict of ExecutorId to ExecutorCut
        The state.
    sinks : dict of ExecutorId to tuple
        What the sinks had received, each batch with its step.
    """

    number: int
    sources: dict[ExecutorId, SourceStanding] = field(default_factory=dict)
    executors: dict[ExecutorId, ExecutorCut] = field(default_factory=dict)
    sinks: dict[ExecutorId, tuple[tuple[int, pa.RecordBatch], ...]] = field(default_factory=dict)


class CheckpointParts(Protocol):
    """Takes what the instances of a job contribute to checkpoints."""

    def add(self, instance: ExecutorId) -> None:
        """Add an instance of the job."""
        ...

    def reached(self, checkpoint: int, source: ExecutorId, standing: SourceStanding) -> None:
        """Take where a source has sent the barrier."""
        ...

    def cut(self, checkpoint: int, executor: ExecutorId, store: PrimaryState) -> None:
        """Copy the state of an executor."""
        ...

    def received(self, checkpoint: int, sink: ExecutorId, batches: Iterable[tuple[int, pa.RecordBatch]]) -> None:
        """Take what a sink has received."""
        ...


class SimulatedCheckpoints:
    """Collects what the instances of a simulated job contribute to checkpoints.

    Parameters
    ----------
    instances : iterable of ExecutorId
        All sources and sinks, and each compute in each executor.

    Attributes
    ----------
    complete : list of SimulatedCheckpoint
        The complete ones, oldest first.
    given_up : set of int
        The numbers of those that were given up.
    cuts : dict of ExecutorId to list of (int, ExecutorCut)
        Every cut of each compute in each executor with its checkpoint, oldest first.
    progress : CheckpointProgress or None
        The checkpoint in progress.
    """

    def __init__(self, instances: Iterable[ExecutorId] = ()):
        self.complete: list[SimulatedCheckpoint] = []
        self.given_up: set[int] = set()
        self.cuts: dict[ExecutorId, list[tuple[int, ExecutorCut]]] = {}
        self.begun = 0
        self._instances = [*instances]
        self.progress: CheckpointProgress[object] | None = None
        self._contents = SimulatedCheckpoint(0)

    def add(self, instance: ExecutorId) -> None:
        """Add an instance of the job."""
        self._instances.append(instance)

    def begin(self) -> int:
        """Begin the next checkpoint; one that is in progress is given up. Returns its number."""
        if self.progress is not None:
            self.given_up.add(self.progress.number)
        self.begun += 1
        self.progress = CheckpointProgress(self.begun, self._instances, 0.0)
        self._contents = SimulatedCheckpoint(self.begun)
        return self.begun

    def give_up(self) -> int | None:
        """Give up the checkpoint in progress; returns its number, None if there is none."""
        if self.progress is None:
            return None
        number, self.progress = self.progress.number, None
        self.given_up.add(number)
        return number

    def reached(self, checkpoint: int, source: ExecutorId, standing: SourceStanding) -> None:
        """Take where a source has sent the barrier."""
        if self._is_current(checkpoint):
            self._contents.sources[source] = standing
        self._acknowledge(checkpoint, source)

    def cut(self, checkpoint: int, executor: ExecutorId, store: PrimaryState) -> None:
        """Copy the state of each compute of an executor."""
        for operator, part in store.stores(executor.component).items():
            identity = ExecutorId(operator, executor.index)
            copied, changes = KeyedStore.extract(part), _changes(part)
            found = ExecutorCut(copied, changes, part.input_schema, store.event_time, store.groups)
            self.cuts.setdefault(identity, []).append((checkpoint, found))
            if self._is_current(checkpoint):
                self._contents.executors[identity] = found
            self._acknowledge(checkpoint, identity)

    def received(self, checkpoint: int, sink: ExecutorId, batches: Iterable[tuple[int, pa.RecordBatch]]) -> None:
        """Take what a sink has received."""
        if self._is_current(checkpoint):
            self._contents.sinks[sink] = tuple(batches)
        self._acknowledge(checkpoint, sink)

    def _is_current(self, checkpoint: int) -> bool:
        return self.progress is not None and self.progress.number == checkpoint

    def _acknowledge(self, checkpoint: int, instance: ExecutorId) -> None:
        progress = self.progress
        if progress is not None and progress.number == checkpoint and progress.acknowledge(instance, None):
            self.complete.append(self._contents)
            self.progress = None


def _changes(store: KeyedStore) -> pa.RecordBatch | None:
    """Cut a store as for a file without any shard in full."""
    batches = [batch for part in store.cut(lambda changed, live: ()) or () for batch in part.batches()]
    return batches[0] if batches else None
