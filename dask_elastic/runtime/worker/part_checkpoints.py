"""The checkpoints of a job's part on one node: what it restores from one, and what it contributes to them."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from typing import Any, Protocol

from dask_elastic.checkpoint.catalog import Catalog
from dask_elastic.checkpoint.changed_aggregates import ChangedAggregates
from dask_elastic.checkpoint.epoch_spool import EpochSpool
from dask_elastic.checkpoint.folder import CheckpointFolder
from dask_elastic.checkpoint.manifest import Manifest
from dask_elastic.checkpoint.other_placing import OtherPlacing
from dask_elastic.checkpoint.pickled import Pickled
from dask_elastic.checkpoint.restore import component_event_time, restore_executor
from dask_elastic.checkpoint.spool.log import SpoolLog, path_of
from dask_elastic.checkpoint.state_file import StateHeader
from dask_elastic.checkpoint.storage.folder_changes import FolderChanges
from dask_elastic.executor.primary_state import PrimaryState
from dask_elastic.routing.keyspace import KeySpace
from dask_elastic.runtime.protocol.calls import Ask
from dask_elastic.runtime.protocol.checkpoint_parts import SourcePosition
from dask_elastic.runtime.protocol.job_spec import CheckpointPlan, JobSpec
from dask_elastic.runtime.transport.credit import Aborted
from dask_elastic.runtime.worker.buffers.spool import Spool
from dask_elastic.runtime.worker.checkpoint_keeper import CheckpointKeeper, Recovered
from dask_elastic.runtime.worker.executor_threads import ExecutorThreads
from dask_elastic.runtime.worker.job_threads import JobThreads
from dask_elastic.runtime.worker.sink_thread import CheckpointEvent, SinkThread
from dask_elastic.runtime.worker.sources.source_thread import SourceThread
from dask_elastic.topology.component import Component
from dask_elastic.topology.source import Source
from dask_elastic.topology.transactions import recovered_writers
from dask_elastic.vocab.errors import CheckpointError
from dask_elastic.vocab.identity import ExecutorId

logger = logging.getLogger("dask_elastic.checkpoint")

HOLD_SECONDS = 60.0
"""Seconds within which spools write what they have begun to write."""

LAST_SECONDS = 5.0
"""Seconds for which the end of a job lasts longer at most, until nothing here changes the folder any more."""


class Instances(Protocol):
    """The instances of a job on this node; see `JobPart`."""

    sources: dict[ExecutorId, SourceThread]
    homes: dict[ExecutorId, ExecutorThreads]
    sinks: dict[ExecutorId, SinkThread]

    def fail(self, error: BaseException) -> None:
        """End the job everywhere because of an error."""
        ...


class PartCheckpoints:
    """The checkpoints of one job on this node.

    Parameters
    ----------
    spec : JobSpec
        The job, which takes checkpoints.
    threads : JobThreads
        Runs the thread that writes.
    ask : callable
        Calls the scheduler from a thread.
    here : Instances
        The instances here.

    Attributes
    ----------
    keeper : CheckpointKeeper
        Makes durable what the instances here contribute.
    given_up : int
        The newest checkpoint that was given up.
    changes : FolderChanges
        The changes that the instances here make to the folder.
    """

    def __init__(self, spec: JobSpec, plan: CheckpointPlan, threads: JobThreads, ask: Ask, here: Instances):
        self._here = here
        self.given_up = 0
        self._spec = spec
        self._plan = plan
        self.changes = FolderChanges()
        self._folder = CheckpointFolder(plan.url, changes=self.changes)
        computes = [(compute.name, s) for s in spec.summaries for compute in s.computes]
        order = {name: position for position, (name, _) in enumerate(computes)}
        headers = {
            ExecutorId(name, index): StateHeader(name, index, len(spec.homes[s.name]), s.shards, 0, frozenset())
            for name, s in computes
            for index in range(len(spec.homes[s.name]))
        }
        self.keeper = CheckpointKeeper(spec.generation_id, self._folder, threads, ask, headers, order)

    def begin(self, number: int, halts: bool) -> None:
        """Begin a checkpoint: sources send its barrier, receivers await it; sources and timers' clocks may halt."""
        if not halts:
            # The call that ends an earlier halt may have failed, and is not repeated.
            self.release(number)
            self.go_on(number)
        for sink in self._here.sinks.values():
            sink.tell(CheckpointEvent.BEGUN, number)
        with self._guarded():
            for home in list(self._here.homes.values()):
                home.begin_checkpoint(number, halts)
        for source in self._here.sources.values():
            source.begin_checkpoint(number, halts)

    def abandon(self, number: int) -> None:
        """Give up a checkpoint."""
        # Before executors are looked up: one that arrives meanwhile looks at this.
        self.given_up = max(self.given_up, number)
        self.keeper.give_up(number)
        with self._guarded():
            for home in list(self._here.homes.values()):
                home.abandon_checkpoint(number)
        for sink in self._here.sinks.values():
            sink.tell(CheckpointEvent.ABANDONED, number)
        self.go_on(number)

    def go_on(self, number: int) -> None:
        """Have the sources and the clock of timers continue if they halt for a checkpoint."""
        for source in self._here.sources.values():
            source.barriers.go_on(number)
        for home in list(self._here.homes.values()):
            home.go_on(number)

    def hold(self, number: int) -> None:
        """Have spools change no more, so that they can be copied; a checkpoint that is given up does not end this.

        Raises
        ------
        CheckpointError
            If rows that are being written do not become durable in time.
        """
        deadline = time.monotonic() + HOLD_SECONDS
        for source in self._here.sources.values():
            if source.spool is not None and not source.spool.hold(number, max(0.0, deadline - time.monotonic())):
                raise CheckpointError(
                    f"source {source.identity} has not written the rows that it has accepted within "
                    f"{HOLD_SECONDS:g} s. See the worker's log for what fails, then try again."
                )

    def release(self, number: int) -> None:
        """Have spools go on that are held for a checkpoint."""
        for source in self._here.sources.values():
            if source.spool is not None:
                source.spool.release(number)

    def commit(self, number: int) -> None:
        """Have the sinks commit what they have prepared for a checkpoint, which is complete, and sources forget."""
        for source in self._here.sources.values():
            if source.spool is not None:
                source.spool.complete(number)
        for sink in self._here.sinks.values():
            sink.tell(CheckpointEvent.COMPLETE, number)

    def abort(self) -> None:
        """Begin no further change of the folder, because the job has ended here; `last_change` awaits the last one."""
        self.changes.close()
        self.keeper.abort()

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        """Fail the job if handling what was held raises: the calling thread may run tasks."""
        try:
            yield
        except Aborted:
            logger.debug("job %r has ended", self._spec.job)
        except Exception as error:  # becomes the job's error, as in the task's own thread
            self._here.fail(error)

    @property
    def restores(self) -> bool:
        """Whether executors start with the state of a checkpoint."""
        return self._plan.number > 0

    @cached_property
    def _manifest(self) -> Manifest | None:
        # Read only by nodes that host sources, executors or sinks: it may be deleted when a worker joins the job later.
        return Catalog(self._folder).load(self._plan.number) if self.restores else None

    def restore(self, executor: ExecutorId, component: Component, store: PrimaryState) -> None:
        """Install the state that the checkpoint has of an executor's computes, and mark what changes from now on.

        Raises
        ------
        CheckpointError
            If it is damaged, its objects cannot be loaded, or it does not suffice for the operators.
        """
        states = {} if self._manifest is None else {state.name: state for state in self._manifest.states}
        executors = len(self._spec.homes[executor.component])
        stores = store.stores(executor.component)
        times: list[int | None] = []
        for operator in component.computes:
            # An operator that was added to the topology has no state yet.
            if (state := states.get(operator.name)) is None:
                continue
            changed = ChangedAggregates.of(state, operator)
            # Key groups are the shards of each executor, however many executors there are: no key changes its group.
            space, routed_by = KeySpace(executors, store.shards), operator.routed_by or operator.keys
            placing = None if state.owned else OtherPlacing.of(state, space, routed_by)
            into, groups = stores[operator.name], store.groups if state.owned else None
            restored = restore_executor(self._folder, state, executor.index, executors, into, changed, placing, groups)
            into.input_schema = restored.input_schema
            times.append(restored.event_time)
            self.keeper.restore(ExecutorId(operator.name, executor.index), restored.chain)
        store.event_time = component_event_time(times)
        store.track_dirty = True

    def position(self, source: ExecutorId) -> SourcePosition:
        """Return where an instance of a source begins.

        Raises
        ------
        CheckpointError
            If its position cannot be loaded.
        """
        positions = _parts(None if self._manifest is None else self._manifest.positions, source.component)
        if source.index >= len(positions) or (pickled := positions[source.index]) is None:
            return SourcePosition()
        position = pickled.load(f"the position of source {source.component!r}")
        assert isinstance(position, SourcePosition), f"{position!r} is no position of a source"
        return position

    def spool(self, identity: ExecutorId, source: Source) -> Spool | None:
        """Open the spool of an instance of a source; None if the source needs none.

        Raises
        ------
        CheckpointError
            If it is damaged, or cannot be read.
        """
        if not source.spooled:
            return None
        offset = self.position(identity).offset
        path = path_of(self._spec.run, identity.component, identity.index)
        log = SpoolLog(self._folder, path, self._spec.generation)
        log.take_over()
        return Spool(log, offset if isinstance(offset, int) else 0, self._spec.options.checkpoint_keep)

    def epoch_spool(self, identity: ExecutorId) -> EpochSpool | None:
        """Return where an instance of a source keeps the rows of epochs; None if it keeps none."""
        return EpochSpool(self._folder, identity.component) if self._spec.summary(identity.component).spooled else None

    async def last_change(self) -> tuple[str, ...]:
        """Return when nothing here changes the folder any more, so that it can be deleted; the job has ended here.

        Storage that hangs is not waited for longer than `LAST_SECONDS`.

        Returns
        -------
        tuple of str
            The files that may still appear then; the log names them, too.
        """
        await asyncio.wait({asyncio.wrap_future(self.changes.last)}, timeout=LAST_SECONDS)
        if running := tuple(self.changes.running):
            logger.warning(
                "job %r: the storage has not answered for %g s since the job ended, and these files may still appear: "
                "%s. Delete the folder later, or again", self._spec.job, LAST_SECONDS, ", ".join(running),
            )  # fmt: skip
        return running

    def recovered(self, sink: ExecutorId) -> Recovered | None:
        """Return what the checkpoint holds for an instance of a sink; None in a job that was not restarted.

        None, too, if it was restarted before a writer of the sink had opened, which would have prepared the place.
        What instances on other nodes had prepared goes to the same node, or to the first one if that has no instance.
        """
        if not self.restores and sink.component not in self._plan.opened:
            return None
        if self._manifest is None:
            return Recovered(0)
        here = [node for node in range(len(self._spec.nodes)) if self._spec.sink_inputs(sink.component, node)]
        prepared = _parts(self._manifest.prepared, sink.component)
        handles: list[Any] = []
        for writer in recovered_writers(len(prepared), here, sink.index):
            if (pickled := prepared[writer]) is not None:
                handles += pickled.load(f"what sink {sink.component!r} has prepared")
        return Recovered(self._manifest.number, tuple(handles))


def _parts(found: Mapping[str, tuple[Pickled | None, ...]] | None, component: str) -> tuple[Pickled | None, ...]:
    return () if found is None else found.get(component, ())
