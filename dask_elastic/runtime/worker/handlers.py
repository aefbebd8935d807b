"""The scheduler's calls that a node answers; no handler raises into Dask."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from dask_elastic._version import __version__
from dask_elastic.executor import events
from dask_elastic.runtime.protocol import part_calls
from dask_elastic.runtime.protocol.calls import Handler, Version, handlers_of
from dask_elastic.runtime.protocol.codec import Payload
from dask_elastic.runtime.protocol.job_description import ExecutorAssignment, Recovery, ShardMove
from dask_elastic.runtime.protocol.job_spec import VACANT
from dask_elastic.runtime.protocol.part_calls import PartCall
from dask_elastic.runtime.protocol.reports import PartReport
from dask_elastic.runtime.protocol.tables import table_bytes
from dask_elastic.runtime.worker.buffers.mailbox import Mailbox, SentBatch
from dask_elastic.runtime.worker.executor_threads import ExecutorThreads
from dask_elastic.runtime.worker.groups.group_handlers import GroupHandlers
from dask_elastic.runtime.worker.homes.home_handlers import HomeHandlers
from dask_elastic.runtime.worker.hosting_node import HostingNode
from dask_elastic.runtime.worker.job_part import JobPart
from dask_elastic.runtime.worker.memory import Memory
from dask_elastic.runtime.worker.stores import reading
from dask_elastic.vocab.errors import MoveRefused, NodeLost, PlanningError, SourceError, UnknownJob
from dask_elastic.vocab.identity import ExecutorId

if TYPE_CHECKING:
    from dask_elastic.runtime.worker.part_checkpoints import PartCheckpoints

logger = logging.getLogger("dask_elastic.node")

SEND_SECONDS = 1.0
START_SECONDS = 1.5
"""Rows that the scheduler forwards have to be offered to the source within this time: later, their client may have been
told that it got no answer, and have sent them again."""
FLUSH_SECONDS = 60.0


class Handlers:
    """Handlers of a node's worker.

    Parameters
    ----------
    node : HostingNode
        The node.
    """

    def __init__(self, node: HostingNode):
        self.node = node
        self._homes = HomeHandlers(node, self._part)
        self._groups = GroupHandlers(node, self._part)

    def handlers(self) -> dict[str, Handler]:
        """Return the handlers by operation."""
        return handlers_of(
            Version.handled_by(self.version),
            part_calls.CheckCode.handled_by(self.check_code),
            part_calls.Prepare.handled_by(self.prepare),
            part_calls.Members.handled_by(self.members),
            part_calls.StartExecutors.handled_by(self.start_executors),
            part_calls.StartSources.handled_by(self.start_sources),
            part_calls.Drain.handled_by(self.drain),
            part_calls.End.handled_by(self.end),
            part_calls.Forget.handled_by(self.forget),
            part_calls.BeginCheckpoint.handled_by(self.begin_checkpoint),
            part_calls.AbandonCheckpoint.handled_by(self.abandon_checkpoint),
            part_calls.HoldSources.handled_by(self.hold_sources),
            part_calls.ContinueSources.handled_by(self.continue_sources),
            part_calls.CommitCheckpoint.handled_by(self.commit_checkpoint),
            part_calls.SetCores.handled_by(self.set_cores),
            part_calls.ChangeSharing.handled_by(self.change_sharing),
            part_calls.MoveShard.handled_by(self.move_shard),
            part_calls.AwaitTaskEnds.handled_by(self.await_task_ends),
            part_calls.Assignment.handled_by(self.assignment),
            part_calls.Moves.handled_by(self.moves),
            part_calls.Recoveries.handled_by(self.recoveries),
            part_calls.Report.handled_by(self.report),
            part_calls.State.handled_by(self.state),
            part_calls.StateTypes.handled_by(self.state_types),
            part_calls.Collect.handled_by(self.collect),
            part_calls.DeadLetters.handled_by(self.dead_letters),
            part_calls.Send.handled_by(self.send),
            part_calls.CloseSource.handled_by(self.close_source),
            *self._homes.handled(),
            *self._groups.handled(),
        )

    def _part(self, call: PartCall[Any]) -> JobPart:
        """Return the job's part; a stale call, to another generation than the one hosted here, is counted."""
        job_part = self.node.job_parts.get(call.job)
        address = self.node.worker.address
        if job_part is None:
            raise UnknownJob(f"worker {address} hosts no job {call.job!r}")
        if job_part.spec.generation != call.generation:
            job_part.refused += 1
            raise UnknownJob(f"worker {address} hosts no generation {call.generation} of job {call.job!r}")
        job_part.idle_watch.note()
        return job_part

    def _hosts(self, call: PartCall[Any]) -> bool:
        """Return whether the job's generation is hosted here; a stale call is counted."""
        job_part = self.node.job_parts.get(call.job)
        if job_part is not None and job_part.spec.generation != call.generation:
            job_part.refused += 1
            return False
        return job_part is not None

    async def version(self, call: Version) -> str:
        """Return the version that runs here."""
        return __version__

    # a part's life

    async def check_code(self, call: part_calls.CheckCode) -> None:
        """Load the code of a job, to find out whether this is possible."""
        await self.node.check_code(call.job, call.components)

    async def prepare(self, call: part_calls.Prepare) -> None:
        """Build this node's part of a job."""
        await self.node.prepare(call.spec, call.components)

    async def members(self, call: part_calls.Members) -> None:
        """Change the nodes of a job."""
        self._part(call)
        await self.node.members(call.job, call.change, call.nodes, call.guests)

    async def start_executors(self, call: part_calls.StartExecutors) -> None:
        """Start executors and sinks."""
        await self.node.in_thread(self._part(call).start_executors)

    async def start_sources(self, call: part_calls.StartSources) -> None:
        """Start the sources."""
        await self.node.in_thread(self._part(call).start_sources)

    async def drain(self, call: part_calls.Drain) -> None:
        """Have the sources read no further."""
        self._part(call).drain()

    async def end(self, call: part_calls.End) -> tuple[str, ...]:
        """Stop at once; state and measures stay readable. A later generation goes on."""
        if not self._hosts(call):
            return ()
        job_part = self.node.job_parts[call.job]
        # Not in the pool: all of its threads may be waiting for something that only the end releases.
        job_part.end()
        return () if job_part.checkpoints is None else await job_part.checkpoints.last_change()

    async def forget(self, call: part_calls.Forget) -> tuple[str, ...]:
        """Stop at once and free everything; a later generation or incarnation goes on."""
        # What is forgotten may still be being built.
        self.node.refuse(call.job, call.generation, call.incarnation)
        if not self._hosts(call):
            return ()
        job_part = self.node.job_parts[call.job]
        if call.incarnation is not None and job_part.spec.incarnation != call.incarnation:
            job_part.refused += 1
            return ()
        return tuple(await self.node.forget(call.job))

    # checkpoints

    def _checkpoints(self, call: PartCall[Any]) -> PartCheckpoints:
        checkpoints = self._part(call).checkpoints
        assert checkpoints is not None, "checkpoints begin in jobs that take them"
        return checkpoints

    async def begin_checkpoint(self, call: part_calls.BeginCheckpoint) -> None:
        """Begin a checkpoint: sources send its barrier, and receivers await it."""
        await self.node.in_thread(self._checkpoints(call).begin, call.number, call.halts)

    async def abandon_checkpoint(self, call: part_calls.AbandonCheckpoint) -> None:
        """Give up a checkpoint."""
        await self.node.in_thread(self._checkpoints(call).abandon, call.number)

    async def hold_sources(self, call: part_calls.HoldSources) -> None:
        """Have the sources acknowledge nothing more; returns when their spools do not change any more."""
        checkpoints = self._checkpoints(call)
        await self.node.in_waiting_thread(checkpoints.hold, call.number)

    async def continue_sources(self, call: part_calls.ContinueSources) -> None:
        """Have the sources continue if they halt behind the barrier of a checkpoint, or are held."""
        checkpoints = self._checkpoints(call)
        checkpoints.release(call.number)
        checkpoints.go_on(call.number)

    async def commit_checkpoint(self, call: part_calls.CommitCheckpoint) -> None:
        """Have the sinks commit what they have prepared for a checkpoint, which is complete."""
        self._checkpoints(call).commit(call.number)

    # cores and shards

    async def set_cores(self, call: part_calls.SetCores) -> None:
        """Set the cores of an executor at home here, unless a later change came before.

        Raises
        ------
        NodeLost
            If a worker that is to have cores is lost; names it. Nothing is changed.
        """
        job_part = self._part(call)
        for node, count in call.cores.items():
            if count and node != job_part.spec.node:
                address = job_part.spec.nodes[node]
                if address == VACANT or address in job_part.members.lost:
                    which = "a worker" if address == VACANT else f"worker {address}"
                    raise NodeLost(f"{which} of job {call.job!r} is lost: request cores there when it has joined again")
                # Raises without a connection to the node.
                self.node.peer(address)
        home = _home_of(job_part, call.operator, call.executor)
        await self.node.in_thread(_changed, job_part, home.set_cores, call.change, call.cores)

    async def change_sharing(self, call: part_calls.ChangeSharing) -> int | None:
        """Have an executor at home here add rows to slices or to instances; returns the event time it had reached."""
        job_part = self._part(call)
        home = _home_of(job_part, call.operator, call.executor)
        reached = home.executor.store.event_time
        await self.node.in_thread(_changed, job_part, home.handle, events.ChangeSharing(call.separate, call.since))
        return reached

    async def move_shard(self, call: part_calls.MoveShard) -> None:
        """Begin to move a shard of an executor at home here."""
        job_part = self._part(call)
        home = _home_of(job_part, call.operator, call.executor)
        await self.node.in_thread(_changed, job_part, home.handle, events.MoveShard(call.shard, call.task))

    async def await_task_ends(self, call: part_calls.AwaitTaskEnds) -> tuple[ExecutorId, ...]:
        """Return the executors at home here with tasks on some nodes, once there are none or after a while."""
        job_part, nodes = self._part(call), set(call.nodes)

        def left() -> tuple[ExecutorId, ...]:
            return tuple(name for name, home in list(job_part.homes.items()) if nodes & home.executor.task_nodes())

        await self.node.task_ends.wait_for(lambda: job_part.ended or not left(), call.wait)
        return left()

    # questions

    async def assignment(self, call: part_calls.Assignment) -> tuple[ExecutorAssignment, ...]:
        """Return shards and tasks of every executor at home here."""
        found = []
        for identity, home in list(self._part(call).homes.items()):
            owner, nodes = home.executor.assignment()
            found.append(ExecutorAssignment(*identity, home.executor.home, tuple(owner.tolist()), nodes))
        return tuple(found)

    async def moves(self, call: part_calls.Moves) -> tuple[ShardMove, ...]:
        """Return the newest finished shard moves of every executor at home here."""
        return tuple(
            ShardMove(*identity, **asdict(move))
            for identity, home in list(self._part(call).homes.items())
            for move in home.executor.finished_moves()
        )

    async def recoveries(self, call: part_calls.Recoveries) -> tuple[Recovery, ...]:
        """Return the newest losses of remote tasks of every executor at home here."""
        return tuple(
            Recovery(*identity, **asdict(record))
            for identity, home in list(self._part(call).homes.items())
            for record in home.executor.recoveries()
        )

    async def report(self, call: part_calls.Report) -> PartReport:
        """Return what the next report would contain."""
        part = self._part(call)
        return await self.node.report_on(part)

    async def state(self, call: part_calls.State) -> tuple[Payload, ...]:
        """Return the state of an executor at home here, its first rows, or the row of one key, as an IPC stream."""
        home = self._home(call)
        return await self.node.in_reading_thread(_state, home, call, self.node.memory)

    async def state_types(self, call: part_calls.StateTypes) -> tuple[Payload, ...]:
        """Return the state of an executor at home here without its rows, as an Arrow IPC stream."""
        return _payload(await self.node.in_thread(self._home(call).read_state, (), call.operator))

    def _home(self, call: part_calls.State | part_calls.StateTypes) -> ExecutorThreads:
        part = self._part(call)
        return _home_of(part, part.spec.component_of(call.operator), call.executor)

    async def collect(self, call: part_calls.Collect) -> tuple[Payload, ...]:
        """Return the rows that a sink here keeps for the client, as an Arrow IPC stream; none without the sink."""
        job_part = self._part(call)
        sink = job_part.sinks.get(ExecutorId(call.operator, job_part.spec.node))
        return _payload(None if sink is None else await self.node.in_thread(sink.collected))

    async def dead_letters(self, call: part_calls.DeadLetters) -> tuple[Payload, ...]:
        """Return the dead letters of an operator here, as an Arrow IPC stream."""
        letters = self._part(call).dead_letters
        return _payload(await self.node.in_reading_thread(letters.rows, call.operator))

    # rows of a pushed source

    async def send(self, call: part_calls.Send) -> bool:
        """Put rows into the mailbox of a source here; returns whether it had room, and they are durable if need be."""
        part = self._part(call)
        thread = part.sources[ExecutorId(call.source, call.instance)]
        with pa.ipc.open_stream(pa.py_buffer(call.rows)) as reader:
            table = reader.read_all().combine_chunks()
        # Spark's sources have no such numbers.
        sent = (SentBatch(call.sender, call.sequence),) if call.sender else ()
        latest = time.monotonic() + START_SECONDS

        def offer(batch: pa.RecordBatch) -> bool:
            return time.monotonic() < latest and thread.mailbox.offer(batch, SEND_SECONDS, call.due, *sent)

        try:
            for batch in table.to_batches():
                if not await self.node.in_waiting_thread(offer, batch):
                    return False
        except SourceError:
            if part.ended and thread.spool is not None:
                # The client asks the scheduler whether the job restarts.
                raise UnknownJob(f"job {call.job!r} has ended on worker {self.node.worker.address}") from None
            raise
        if thread.spool is None or await self.node.in_waiting_thread(thread.spool.wait_durable, SEND_SECONDS):
            return True
        if thread.spool.stopped:
            # Nothing will be durable here: a later generation has taken over, or the job has ended.
            raise UnknownJob(f"job {call.job!r} accepts no rows on worker {self.node.worker.address} any more")
        return False

    async def close_source(self, call: part_calls.CloseSource) -> None:
        """End a pushed source after the rows that were sent."""
        part = self._part(call)
        thread = part.sources[ExecutorId(call.source, call.instance)]
        if isinstance(thread.mailbox, Mailbox):
            thread.mailbox.end()
        else:
            thread.mailbox.close()
        spool = thread.spool
        while spool is not None and not await self.node.in_waiting_thread(spool.wait_durable, SEND_SECONDS):
            if part.ended or spool.stopped:
                raise UnknownJob(f"job {call.job!r} has ended on worker {self.node.worker.address}")


def _home_of(part: JobPart, component: str, index: int) -> ExecutorThreads:
    home = part.homes.get(ExecutorId(component, index))
    if home is None:
        raise MoveRefused(f"{ExecutorId(component, index)} is not at home on this worker: it moves, or has moved")
    return home


def _changed(job_part: JobPart, change: Callable[..., None], *arguments: Any) -> None:
    """Change an executor; an error that is no refusal ends the job, since rows would wait for the rest of it."""
    try:
        change(*arguments)
    except (MoveRefused, PlanningError):
        raise
    except Exception as error:
        job_part.fail(error)
        raise


def _state(home: ExecutorThreads, call: part_calls.State, memory: Memory) -> tuple[Payload, ...]:
    if not home.threads.ended:
        home.flush(FLUSH_SECONDS)
    return _payload(reading.read(home, call.operator, call.key, call.first, memory))


def _payload(table: pa.Table | None) -> tuple[Payload, ...]:
    return () if table is None else (memoryview(table_bytes(table)),)
