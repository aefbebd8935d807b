"""Makes a node's part of checkpoints durable and acknowledges it, in a thread of its own."""

from __future__ import annotations

import logging
import pickle
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import pyarrow as pa

from dask_elastic.checkpoint.chain import Chain
from dask_elastic.checkpoint.folder import CheckpointFolder
from dask_elastic.checkpoint.pickled import Pickled
from dask_elastic.checkpoint.staged_rows import StagedRows
from dask_elastic.checkpoint.state_file import StateHeader, path_of, write
from dask_elastic.executor.primary_state import PrimaryState
from dask_elastic.runtime.protocol.calls import Ask
from dask_elastic.runtime.protocol.checkpoint_calls import (
    Acknowledge,
    CheckpointCall,
    CheckpointFailed,
    Committed,
    RequestCheckpoint,
    SinkOpened,
)
from dask_elastic.runtime.protocol.checkpoint_parts import ExecutorPart, SourcePosition
from dask_elastic.runtime.protocol.job_spec import JobGeneration
from dask_elastic.runtime.protocol.remote_errors import dump_error
from dask_elastic.runtime.transport.doorbell import Doorbell
from dask_elastic.runtime.worker.job_threads import JobThreads
from dask_elastic.state.codec import EncodedRows, StateRows
from dask_elastic.state.fused.fused_store import FusedStore
from dask_elastic.state.slots import Counts
from dask_elastic.vocab.errors import ElasticError, StateDiskError
from dask_elastic.vocab.identity import ExecutorId

logger = logging.getLogger("dask_elastic.checkpoint")

Cut = Sequence[StateRows | EncodedRows]


class _Work(NamedTuple):
    """What the thread has to do: for which checkpoint, and the executor whose copied state it writes, if any."""

    run: Callable[[], None]
    checkpoint: int | None = None
    executor: ExecutorId | None = None


@dataclass(frozen=True)
class Recovered:
    """What the checkpoint from which a job was restarted holds for an instance of a sink.

    Parameters
    ----------
    checkpoint : int
        The number of the checkpoint; 0 if there was none.
    prepared : tuple of object
        What writers had prepared for it; see `SinkWriter.recover`.
    """

    checkpoint: int
    prepared: tuple[object, ...] = ()


class CheckpointKeeper:
    """Writes the state of executors, and tells the scheduler what instances have contributed to a checkpoint.

    Parameters
    ----------
    generation_id : JobGeneration
        The job and its generation.
    folder : CheckpointFolder
        Where the files go.
    threads : JobThreads
        Runs the thread.
    ask : callable
        Calls the scheduler from a thread.
    headers : dict of ExecutorId to StateHeader
        What the files of each compute and executor say about them.
    order : dict of str to int
        The position of each component or compute in the topology.

    Attributes
    ----------
    staging : StagedRows
        Keeps rows of sinks until they are committed.
    """

    def __init__(
        self,
        generation_id: JobGeneration,
        folder: CheckpointFolder,
        threads: JobThreads,
        ask: Ask,
        headers: dict[ExecutorId, StateHeader],
        order: dict[str, int],
    ):
        self._generation_id = generation_id
        self.staging = StagedRows(folder)
        self._folder = folder
        self._threads = threads
        self._ask = ask
        self._headers = headers
        self._order = order
        self._chains: dict[ExecutorId, Chain] = {}
        self._lock = threading.Lock()
        self._work: deque[_Work] = deque()
        self._given_up = 0
        self._started = False
        self._bell = Doorbell()

    def start(self) -> None:
        """Start the thread, unless it runs."""
        with self._lock:
            starts, self._started = not self._started, True
        if starts:
            self._threads.start("checkpoints", self._run)

    def abort(self) -> None:
        """Wake the thread, so that it sees that the job has ended."""
        self._bell.ring()

    def restore(self, executor: ExecutorId, chain: Chain) -> None:
        """Note the files from which an executor was restored; the next ones continue them."""
        self._chains[executor] = chain

    def left(self, executor: ExecutorId) -> Chain | None:
        """Return the files of an executor that continues at another home; None if none was cut or restored.

        What is not written yet is written no more, or without effect: the next home writes it again.
        """
        with self._lock:
            self._drop(lambda work: work.executor == executor)
            # It stays here, too: the thread may be about to note a file.
            chain = self._chains.get(executor)
        return None if chain is None else chain.abandoned()

    def arrived(self, executor: ExecutorId, chain: Chain | None) -> None:
        """Take an executor that has come from another home, with its files; the next one continues them."""
        with self._lock:
            self._drop(lambda work: work.executor == executor)
            self._chains.pop(executor, None)
            if chain is not None:
                self._chains[executor] = chain

    def _do(self, run: Callable[[], None], checkpoint: int | None = None, executor: ExecutorId | None = None) -> None:
        with self._lock:
            self._work.append(_Work(run, checkpoint, executor))
        self._bell.ring()

    def _run(self) -> None:
        while not self._threads.ended:
            with self._lock:
                work = self._work.popleft() if self._work else None
            if work is None:
                self._bell.wait()
            else:
                work.run()

    def give_up(self, checkpoint: int) -> None:
        """Drop what is to be done for a checkpoint that was given up, and for earlier ones.

        While the storage does not answer, copied state would otherwise fill the memory.
        """
        with self._lock:
            self._given_up = max(self._given_up, checkpoint)
            self._drop(lambda work: work.checkpoint is not None and work.checkpoint <= checkpoint)

    def _drop(self, is_dropped: Callable[[_Work], bool]) -> None:
        """Drop work; the next file of an executor contains its part in full. The caller holds the lock."""
        for work in filter(is_dropped, self._work):
            if work.executor is not None and work.checkpoint is not None:
                self._chains[work.executor] = self._chains[work.executor].failed(work.checkpoint)
        self._work = deque(work for work in self._work if not is_dropped(work))

    # what instances contribute

    def cut(
        self,
        checkpoint: int,
        executor: ExecutorId,
        store: PrimaryState | FusedStore,
        held: float,
        event_time: int | None,
        groups: tuple[int, ...] | None = None,
    ) -> None:
        """Copy what has changed in a compute's state in an executor, whose tasks are idle; the thread writes the copy.

        State on disk is copied to the local disk: if that is full, the checkpoint fails.

        Parameters
        ----------
        checkpoint : int
            The number of the checkpoint.
        executor : ExecutorId
            The compute, and the number of the executor that runs it.
        store : PrimaryState or FusedStore
            Its state.
        held : float
            Seconds for which its inputs had to wait.
        event_time : int or None
            The event time of the executor's last state record.
        groups : tuple of int, optional
            The key groups that the executor owns, where groups move.
        """
        with self._lock:
            # An earlier checkpoint whose file is not written was given up.
            self._drop(lambda work: work.executor == executor)
            before = self._chains.setdefault(executor, Chain(store.shards))
        after = before

        def choose(changed: Counts, live: Counts) -> frozenset[int]:
            nonlocal after
            after = before.cut(checkpoint, changed, live)
            return after.full(checkpoint)

        try:
            state = store.cut(choose)
        except StateDiskError as error:
            # All changes are still marked, so the next cut contains them.
            self._do(partial(self._fail, checkpoint, error), checkpoint)
            return
        if after is not before:
            with self._lock:
                # The thread may have written the file of an earlier cut meanwhile.
                now = self._chains[executor]
                self._chains[executor] = replace(now, links=(*now.links, after.links[-1]))
        schema = store.input_schema
        made = partial(ExecutorPart, held=held, event_time=event_time, groups=groups)
        self._do(lambda: self._write(checkpoint, executor, state, schema, made), checkpoint, executor)

    def _write(
        self,
        checkpoint: int,
        executor: ExecutorId,
        state: Cut | None,
        schema: pa.Schema | None,
        part_of: Callable[[Chain], ExecutorPart],
    ) -> None:
        self._threads.lease.wait()
        with self._lock:
            if checkpoint <= self._given_up:
                self._chains[executor] = self._chains[executor].failed(checkpoint)
                return
            chain = self._chains[executor]
        try:
            if state is not None and chain.is_cut(checkpoint):
                header = replace(
                    self._headers[executor], number=checkpoint, full=chain.full(checkpoint), input_schema=schema
                )
                path = path_of(self._order[executor.component], header, self._generation_id.generation)
                file = write(self._folder, path, header, state)
                with self._lock:
                    self._chains[executor] = self._chains[executor].written(checkpoint, file)
            part = self._chains[executor].at(checkpoint)
        except ElasticError as error:
            with self._lock:
                self._chains[executor] = self._chains[executor].failed(checkpoint)
            if not self._threads.ended:
                self._fail(checkpoint, error)
            return
        self._acknowledge(checkpoint, executor, part_of(part))

    def reached(self, checkpoint: int, source: ExecutorId, position: SourcePosition) -> None:
        """Take the position at which an instance of a source has sent the barrier."""
        self._do(lambda: self._acknowledge(checkpoint, source, position), checkpoint)

    def prepared(self, checkpoint: int, sink: ExecutorId, handles: tuple[object, ...]) -> None:
        """Take what a writer of a sink has prepared and not committed."""
        self._do(lambda: self._acknowledge(checkpoint, sink, handles), checkpoint)

    def committed(self, checkpoint: int, sink: ExecutorId) -> None:
        """Note that an instance of a sink has committed what it had prepared up to a complete checkpoint."""
        self._do(lambda: self._tell(Committed(*self._generation_id, checkpoint, *sink)))

    def opened(self, sink: ExecutorId) -> None:
        """Note that a writer of a sink has opened for the first time; the scheduler knows it when this returns."""
        self._tell(SinkOpened(*self._generation_id, sink.component))

    def request(self) -> None:
        """Request a checkpoint as soon as possible: a sink waits for it to commit its last rows."""
        self._do(lambda: self._tell(RequestCheckpoint(*self._generation_id)))

    def _acknowledge(self, checkpoint: int, instance: ExecutorId, part: object) -> None:
        try:
            # A sink that has prepared nothing has no part in the manifest.
            pickled = None if part == () else Pickled.of(part)
        except ElasticError as error:
            self._fail(checkpoint, error)
            return
        self._tell(Acknowledge(*self._generation_id, checkpoint, *instance, pickle.dumps(pickled)))

    def _fail(self, checkpoint: int, error: ElasticError) -> None:
        logger.warning("job %r: checkpoint %d: %s", self._generation_id.job, checkpoint, error)
        self._tell(CheckpointFailed(*self._generation_id, checkpoint, dump_error(error)))

    def _tell(self, call: CheckpointCall) -> None:
        try:
            self._ask(call)
        except (ElasticError, OSError) as error:
            # The scheduler gives the checkpoint up when it has waited long enough.
            logger.warning("job %r: %s was not delivered: %s", self._generation_id.job, call.operation, error)
