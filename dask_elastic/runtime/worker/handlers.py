"""What the scheduler asks of a node; each handler answers with plain values and never raises into Dask."""

from __future__ import annotations

import logging
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from distributed.protocol import to_serialize

from dask_elastic._version import __version__
from dask_elastic.executor import events
from dask_elastic.runtime.protocol.answers import Handler, answered
from dask_elastic.runtime.protocol.tables import table_bytes
from dask_elastic.runtime.worker.report import part_report
from dask_elastic.vocab.errors import UnknownJob
from dask_elastic.vocab.identity import ExecutorId

if TYPE_CHECKING:
    from dask_elastic.runtime.worker.executor_threads import ExecutorThreads
    from dask_elastic.runtime.worker.job_part import JobPart
    from dask_elastic.runtime.worker.node import NodeRuntime

logger = logging.getLogger("dask_elastic.node")

SEND_SECONDS = 1.0
FLUSH_SECONDS = 60.0


class Handlers:
    """Handlers of a node's worker.

    Parameters
    ----------
    runtime : NodeRuntime
        The node.
    """

    def __init__(self, runtime: NodeRuntime):
        self.runtime = runtime

    def handlers(self) -> dict[str, Handler]:
        """Return the handlers by the name of their operation."""
        commands: list[Handler] = [
            self.version, self.prepare, self.members, self.start_executors, self.start_sources, self.drain, self.end,
            self.forget, self.set_cores, self.move_shard, self.moves, self.recoveries, self.assignment,
            self.task_nodes, self.report, self.state, self.send, self.close_source, self.collect, self.dead_letters,
        ]  # fmt: skip
        return {f"elastic_{command.__name__}": answered(command) for command in commands}

    def _run(self, job: str, generation: int) -> JobPart:
        """Return a job's part if it is of this run: what was said to an earlier one is stale, and counted."""
        job_part = self.runtime.job_parts.get(job)
        if job_part is None:
            raise UnknownJob(f"worker {self.runtime.worker.address} hosts no job {job!r}")
        if job_part.spec.generation != generation:
            job_part.refused += 1
            raise UnknownJob(f"worker {self.runtime.worker.address} hosts no run {generation} of job {job!r}")
        return job_part

    async def version(self) -> str:
        """Return the version that runs here."""
        return __version__

    async def prepare(self, spec: dict[str, Any], components: bytes) -> None:
        """Build this node's part of a job."""
        await self.runtime.prepare(spec, components)

    async def members(self, job: str, generation: int, change: int, nodes: list[str], guests: list[int]) -> None:
        """Learn which nodes a job has from now on."""
        self._run(job, generation)
        await self.runtime.members(job, change, nodes, guests)

    async def start_executors(self, job: str, generation: int) -> None:
        """Start everything but the sources."""
        await self.runtime.in_thread(self._run(job, generation).start_executors)

    async def start_sources(self, job: str, generation: int) -> None:
        """Let the tuples flow."""
        await self.runtime.in_thread(self._run(job, generation).start_sources)

    async def drain(self, job: str, generation: int) -> None:
        """Read no further."""
        self._run(job, generation).drain()

    async def end(self, job: str, generation: int) -> None:
        """Stop at once; state and measures stay readable. A later run of the job goes on."""
        if self._hosts(job, generation):
            # Not in the pool: all of its threads may be waiting for what only the end sets free.
            self.runtime.job_parts[job].end()

    async def forget(self, job: str, generation: int, incarnation: int | None = None) -> list[str]:
        """Stop at once and drop everything, but for a later run of the job, or a part of it that has joined since."""
        if not self._hosts(job, generation):
            return []
        job_part = self.runtime.job_parts[job]
        if incarnation is not None and job_part.spec.incarnation != incarnation:
            job_part.refused += 1
            return []
        return await self.runtime.forget(job)

    def _hosts(self, job: str, generation: int) -> bool:
        job_part = self.runtime.job_parts.get(job)
        if job_part is not None and job_part.spec.generation != generation:
            job_part.refused += 1
            return False
        return job_part is not None

    async def set_cores(
        self, job: str, generation: int, change: int, operator: str, executor: int, cores: list[list[int]]
    ) -> None:
        """Give an executor at home here so many cores on each node, unless a later change was made already."""
        job_part = self._run(job, generation)
        for node, count in cores:
            if count and node != job_part.spec.node:
                # Raises where the way there is gone, before anything is changed.
                self.runtime.peer(job_part.spec.nodes[node])
        home = job_part.homes[ExecutorId(operator, executor)]
        await self.runtime.in_thread(home.set_cores, change, {int(node): count for node, count in cores})

    async def move_shard(self, job: str, generation: int, operator: str, executor: int, shard: int, task: int) -> None:
        """Begin to move a shard of an executor at home here."""
        home = self._run(job, generation).homes[ExecutorId(operator, executor)]
        await self.runtime.in_thread(home.handle, events.MoveShard(shard, task))

    async def assignment(self, job: str, generation: int) -> list[dict[str, Any]]:
        """Which task each shard belongs to, for every executor at home here."""
        made = []
        for identity, home in self._run(job, generation).homes.items():
            owner, nodes = home.executor.assignment()
            made.append(
                {
                    "operator": identity.component,
                    "executor": identity.index,
                    "home": home.executor.home,
                    "owner": owner.tolist(),
                    "node_of_task": [[task, node] for task, node in sorted(nodes.items())],
                }
            )
        return made

    async def task_nodes(self, job: str, generation: int) -> list[list[Any]]:
        """Return the nodes on which each executor at home here has tasks, those about to stop included."""
        return [
            [*identity, sorted(home.executor.task_nodes())]
            for identity, home in self._run(job, generation).homes.items()
        ]

    async def moves(self, job: str, generation: int) -> list[dict[str, Any]]:
        """Return the newest finished shard moves of every executor at home here."""
        return [
            {"operator": identity.component, "executor": identity.index, **asdict(move)}
            for identity, home in self._run(job, generation).homes.items()
            for move in home.executor.finished_moves()
        ]

    async def recoveries(self, job: str, generation: int) -> list[dict[str, Any]]:
        """Return what became of lost remote tasks of every executor at home here."""
        return [
            {"operator": identity.component, "executor": identity.index, **asdict(record)}
            for identity, home in self._run(job, generation).homes.items()
            for record in home.executor.recoveries()
        ]

    async def report(self, job: str, generation: int) -> dict[str, Any]:
        """Return what would be in the next report."""
        return await self.runtime.in_thread(part_report, self._run(job, generation))

    async def state(self, job: str, generation: int, operator: str, executor: int, key: list[Any] | None = None) -> Any:
        """Return the state of an executor at home here, or of one key of it, as an Arrow IPC stream."""
        home = self._run(job, generation).homes[ExecutorId(operator, executor)]
        return await self.runtime.in_thread(_state_bytes, home, key)

    async def send(self, job: str, generation: int, source: str, instance: int, rows: Any) -> bool:
        """Put rows into the mailbox of a source here; returns whether there was room."""
        thread = self._run(job, generation).sources[ExecutorId(source, instance)]
        with pa.ipc.open_stream(pa.py_buffer(rows)) as reader:
            table = reader.read_all().combine_chunks()
        for batch in table.to_batches():
            if not await self.runtime.in_thread(thread.mailbox.offer, batch, SEND_SECONDS):
                return False
        return True

    async def close_source(self, job: str, generation: int, source: str, instance: int) -> None:
        """End a pushed source after what was sent."""
        self._run(job, generation).sources[ExecutorId(source, instance)].mailbox.close()

    async def collect(self, job: str, generation: int, operator: str) -> list[Any]:
        """Return what a sink here keeps for the client, as an Arrow IPC stream; nothing when it is not here."""
        job_part = self._run(job, generation)
        sink = job_part.sinks.get(ExecutorId(operator, job_part.spec.node))
        batches = [] if sink is None else await self.runtime.in_thread(sink.collected)
        return [to_serialize(memoryview(table_bytes(pa.Table.from_batches(batches))))] if batches else []

    async def dead_letters(self, job: str, generation: int, operator: str) -> list[Any]:
        """Return the rows that an operator's code could not digest here."""
        rows = self._run(job, generation).dead_letters.rows(operator)
        return [] if rows is None else [to_serialize(memoryview(table_bytes(rows)))]


def _state_bytes(home: ExecutorThreads, key: list[Any] | None) -> list[Any]:
    if not home.ended:
        home.flush(FLUSH_SECONDS)
    table = home.read_state() if key is None else home.find_key(key)
    return [] if table is None else [to_serialize(memoryview(table_bytes(table)))]
