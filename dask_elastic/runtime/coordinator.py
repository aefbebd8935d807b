"""The scheduler's side of jobs: it places, starts, watches and ends them, and passes commands on."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dask_elastic._version import __version__
from dask_elastic.planning.initial import Demand, InitialPlacement, place
from dask_elastic.runtime.commands import Handler, answered
from dask_elastic.runtime.job_record import ENDED, JobRecord, Status
from dask_elastic.runtime.job_spec import JobOptions, JobSpec, summaries_from
from dask_elastic.runtime.report import Relayed, dump_error
from dask_elastic.vocab.errors import (
    ElasticError,
    JobFailed,
    NodeLost,
    NoWorkers,
    PlanningError,
    SubmitError,
    UnknownJob,
    UnknownOperator,
    VersionMismatch,
)

if TYPE_CHECKING:
    from distributed import Scheduler

logger = logging.getLogger("dask_elastic.scheduler")

START_SECONDS = 10.0
START_POLL = 0.01
"""How long, and how often, to look for a worker that has registered but does not run yet."""

KEPT_JOBS = 16
"""Ended jobs beyond this number are forgotten, oldest first."""


class Coordinator:
    """Knows every job of a cluster.

    Parameters
    ----------
    scheduler : distributed.Scheduler
        The scheduler that we are part of.
    """

    def __init__(self, scheduler: Scheduler):
        self.scheduler = scheduler
        self.jobs: dict[str, JobRecord] = {}
        self._background: set[asyncio.Task[Any]] = set()
        self._starting: set[str] = set()
        self._generations = itertools.count(1)

    def handlers(self) -> dict[str, Handler]:
        """Handlers by the name of their operation; none raises into Dask."""
        commands: list[Handler] = [
            self.submit, self.known, self.describe, self.wait, self.drain, self.stop, self.forget, self.set_cores,
            self.move_shard, self.moves, self.assignment, self.state, self.send, self.close_source, self.collect,
            self.dead_letters, self.version,
        ]  # fmt: skip
        made = {f"elastic_{command.__name__}": answered(command) for command in commands}
        return {**made, "elastic_report": self.report}

    # talking to workers

    async def _call(self, address: str, operation: str, **arguments: Any) -> Any:
        if address not in self.scheduler.workers:
            # Dialling would try again and again until Dask's timeout.
            raise NodeLost(f"worker {address} is gone, and what it held of the job with it")
        try:
            reply = await getattr(self.scheduler.rpc(address), f"elastic_{operation}")(**arguments)
        except (TimeoutError, OSError) as error:
            raise NodeLost(f"worker {address} does not answer {operation!r}: {error}") from error
        if reply is None or "answer" not in reply:
            raise Relayed(reply["error"]) if reply else NodeLost(f"worker {address} runs no dask_elastic")
        return reply["answer"]

    async def _call_all(self, record: JobRecord, operation: str, **arguments: Any) -> list[Any]:
        calls = (self._call(address, operation, job=record.name, **arguments) for address in record.nodes)
        return await asyncio.gather(*calls)

    async def _tell_all(self, record: JobRecord, operation: str) -> None:
        """Tell every node that is still there; those that are gone need not know."""
        present = [address for address in record.nodes if address in self.scheduler.workers]
        run = {"job": record.name, "generation": record.spec.generation}
        calls = (self._call(address, operation, **run) for address in present)
        for result in await asyncio.gather(*calls, return_exceptions=True):
            if isinstance(result, BaseException):
                logger.warning("job %r: %s: %s", record.name, operation, result)

    def spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        """Run something beside the handler at hand."""
        task = asyncio.ensure_future(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    # starting a job

    async def version(self) -> str:
        """Return the version that runs here."""
        return __version__

    async def submit(
        self,
        name: str,
        version: str,
        summaries: list[dict[str, Any]],
        options: dict[str, Any],
        cores: dict[str, int],
        components: bytes,
    ) -> dict[str, Any]:
        """Place a job on the workers of this moment and start it."""
        if name in self._starting or (name in self.jobs and self.jobs[name].status not in ENDED):
            raise SubmitError(f"a job {name!r} is running already: stop it, or submit under another name=")
        self._starting.add(name)
        try:
            return await self._submit(name, version, summaries, options, cores, components)
        finally:
            self._starting.discard(name)

    async def _submit(
        self,
        name: str,
        version: str,
        summaries: list[dict[str, Any]],
        options: dict[str, Any],
        cores: dict[str, int],
        components: bytes,
    ) -> dict[str, Any]:
        nodes = await self._workers()
        if not nodes:
            raise NoWorkers("the cluster has no workers: add some, then submit again")
        await self._check_versions(version, nodes)
        if name in self.jobs:
            await self.forget(name)
        made = summaries_from(summaries)
        placement = self._place(made, nodes, cores)
        run = next(self._generations)
        spec = JobSpec(name, run, tuple(nodes), 0, made, placement.homes, placement.cores, JobOptions(**options))
        record = self.jobs[name] = JobRecord(spec, placement.oversubscribed)
        try:
            await self._start(record, components)
        except BaseException:
            await self._tell_all(record, "forget")
            self.jobs.pop(name, None)
            raise
        if record.status in ENDED:
            # Whoever ended it while it started did not reach what was not there yet.
            await self._tell_all(record, "end" if self.jobs.get(name) is record else "forget")
        self._forget_old()
        return record.description()

    async def _workers(self) -> list[str]:
        """Addresses of the workers; those that have just registered come up within moments and are waited for."""
        deadline = time.monotonic() + START_SECONDS
        while any(w.status.name == "init" for w in self.scheduler.workers.values()) and time.monotonic() < deadline:
            await asyncio.sleep(START_POLL)
        return sorted(w.address for w in self.scheduler.workers.values() if w.status.name == "running")

    def _place(self, summaries: Iterable[Any], nodes: list[str], cores: dict[str, int]) -> InitialPlacement:
        demands = [
            Demand(s.name, s.instances, s.kind == "compute", cores.get(s.name)) for s in summaries if s.kind != "sink"
        ]
        used = dict.fromkeys(nodes, 0)
        for record in self.jobs.values():
            if record.status not in ENDED:
                for address, count in record.cores_by_address().items():
                    used[address] = used.get(address, 0) + count
        try:
            return place(demands, [self.scheduler.workers[n].nthreads - used[n] for n in nodes])
        except PlanningError as error:
            raise SubmitError(str(error)) from error

    async def _start(self, record: JobRecord, components: bytes) -> None:
        spec = record.spec
        prepared = (
            self._call(address, "prepare", spec=replace(spec, node=node).to_message(), components=components)
            for node, address in enumerate(spec.nodes)
        )
        # All of them have answered before any is told to forget the job.
        for result in await asyncio.gather(*prepared, return_exceptions=True):
            if isinstance(result, BaseException):
                raise result
        await self._call_all(record, "start_executors")
        record.change(Status.RUNNING)
        await self._call_all(record, "start_sources")

    async def _check_versions(self, version: str, nodes: list[str]) -> None:
        calls = (self._call(address, "version") for address in nodes)
        answers = await asyncio.gather(*calls, return_exceptions=True)
        seen = {"client": version, "scheduler": __version__}
        for address, answer in zip(nodes, answers, strict=True):
            seen[address] = str(answer) if isinstance(answer, str) else f"no dask_elastic ({answer})"
        if len(set(seen.values())) > 1:
            listed = ", ".join(f"{where}: {what}" for where, what in seen.items())
            raise VersionMismatch(f"dask_elastic differs: {listed}. Install one version everywhere.")

    # watching a job

    def record(self, name: str) -> JobRecord:
        """Return the record of a job.

        Raises
        ------
        UnknownJob
            If there is none of that name.
        """
        record = self.jobs.get(name)
        if record is None:
            raise UnknownJob(f"no job {name!r}: the cluster knows {sorted(self.jobs) or 'none'}")
        return record

    async def known(self) -> list[dict[str, Any]]:
        """All jobs, oldest first."""
        return [record.description() for record in self.jobs.values()]

    async def describe(self, job: str) -> dict[str, Any]:
        """One job with its newest measures."""
        return self.record(job).description()

    async def wait(self, job: str, timeout: float) -> dict[str, Any]:
        """One job, once it has ended or `timeout` seconds have passed."""
        record = self.record(job)
        await record.ended(timeout)
        return record.description()

    async def report(self, job: str, generation: int, node: int, report: dict[str, Any]) -> None:
        """Take a worker's report; a stale one is ignored."""
        record = self.jobs.get(job)
        if record is None or record.spec.generation != generation:
            return
        record.reports[node] = {**report, "at": time.time()}
        if record.status in ENDED:
            return
        if report["error"] is not None:
            self._fail(record, report["error"])
        elif len(record.reports) == len(record.nodes) and all(r["complete"] for r in record.reports.values()):
            self._finish_once(record)

    def _finish_once(self, record: JobRecord) -> None:
        if not record.finishing:
            record.finishing = True
            self.spawn(self._finish(record))

    async def _finish(self, record: JobRecord) -> None:
        """Take the last reports: a node that has but remote tasks sent its own before these were done."""
        try:
            reports = await self._call_all(record, "report")
        except (ElasticError, Relayed) as error:
            self._fail(record, dump_error(error))
            return
        for node, report in enumerate(reports):
            record.reports[node] = {**report, "at": time.time()}
        record.change(Status.FINISHED)
        # Nothing is left to do: threads end, state and measures stay readable.
        await self._tell_all(record, "end")

    def _fail(self, record: JobRecord, error: bytes) -> None:
        if record.status in ENDED:
            return
        record.error = error
        record.change(Status.FAILED)
        self.spawn(self._tell_all(record, "end"))

    def node_lost(self, address: str) -> None:
        """Note that a worker has left; the jobs that ran on it fail."""
        for record in self.jobs.values():
            if address in record.nodes and record.status not in ENDED:
                logger.error("job %r lost worker %s", record.name, address)
                hint = "A job does not survive the loss of a worker yet: submit it again."
                self._fail(record, dump_error(NodeLost(f"worker {address} of job {record.name!r} is gone. {hint}")))

    @property
    def running(self) -> Iterable[JobRecord]:
        """The jobs that have not ended."""
        return [record for record in self.jobs.values() if record.status not in ENDED]

    # ending a job

    async def drain(self, job: str) -> None:
        """Read no further; the job ends once it has processed what it read."""
        record = self.record(job)
        if record.status in ENDED:
            return
        record.change(Status.DRAINING)
        await self._call_all(record, "drain")

    async def stop(self, job: str) -> None:
        """End a job at once; its state stays readable."""
        record = self.record(job)
        if record.status in ENDED:
            return
        record.change(Status.STOPPED)
        await self._tell_all(record, "end")

    async def forget(self, job: str) -> None:
        """End a job at once and drop its state."""
        record = self.record(job)
        await self.stop(job)
        await self._tell_all(record, "forget")
        # Somebody may have submitted a job of this name meanwhile.
        if self.jobs.get(job) is record:
            del self.jobs[job]

    def _forget_old(self) -> None:
        ended = [record.name for record in self.jobs.values() if record.status in ENDED]
        for name in ended[: max(0, len(ended) - KEPT_JOBS)]:
            self.spawn(self.forget(name))

    async def close(self) -> None:
        """Forget every job."""
        for name in [*self.jobs]:
            await self.forget(name)
        for task in [*self._background]:
            task.cancel()

    # commands and questions

    def _homes(self, record: JobRecord, operator: str, executor: int | None) -> list[tuple[int, str]]:
        """(executor, address of its home) of a stateful operator, or of one executor of it."""
        if operator not in record.spec.cores:
            known = sorted(record.spec.cores)
            raise UnknownOperator(f"job {record.name!r} has no stateful operator {operator!r}: choose from {known}")
        homes = [record.nodes[node] for node in record.spec.homes[operator]]
        if executor is None:
            return [*enumerate(homes)]
        if not 0 <= executor < len(homes):
            raise UnknownOperator(f"operator {operator!r} has the executors 0 to {len(homes) - 1}, not {executor}")
        return [(executor, homes[executor])]

    async def set_cores(self, job: str, operator: str, cores: Any, executor: int | None = None) -> dict[str, Any]:
        """Give each executor so many cores (a number), or so many on each node ({address: number})."""
        record = self.record(job)
        for index, address in self._homes(record, operator, executor):
            by_node = self._cores_wanted(record, operator, index, cores)
            await self._call(address, "set_cores", job=job, operator=operator, executor=index, cores=[*by_node.items()])
            record.cores[operator, index] = by_node
        return record.description()

    def _cores_wanted(self, record: JobRecord, operator: str, executor: int, cores: Any) -> dict[int, int]:
        if isinstance(cores, dict):
            unknown = [address for address in cores if address not in record.nodes]
            if unknown:
                raise PlanningError(f"{unknown[0]!r} is no node of job {record.name!r}: choose from {record.nodes}")
            return {record.nodes.index(address): int(count) for address, count in cores.items()}
        if cores < 1:
            raise PlanningError(f"an executor keeps at least one core: cores={cores} was asked for")
        return self._grown(record, operator, executor, int(cores))

    def _grown(self, record: JobRecord, operator: str, executor: int, cores: int) -> dict[int, int]:
        """Keep what it has as far as wanted, home first; then take free slots at home, then those of other nodes."""
        home = record.spec.homes[operator][executor]
        held = record.cores[operator, executor]
        wanted: dict[int, int] = {}
        for node in sorted(held, key=lambda n: (n != home, n)):
            wanted[node] = min(held[node], cores - sum(wanted.values()))
        slots = {n: self.scheduler.workers[a].nthreads for n, a in enumerate(record.nodes)}
        for other in self.running:
            for address, count in other.cores_by_address().items():
                if address in record.nodes:
                    slots[record.nodes.index(address)] -= count
        while sum(wanted.values()) < cores:
            node = home if slots[home] > 0 else max(slots, key=lambda n: (slots[n], n == home, -n))
            record.oversubscribed |= slots[node] <= 0
            slots[node] -= 1
            wanted[node] = wanted.get(node, 0) + 1
        return {node: count for node, count in wanted.items() if count}

    async def move_shard(self, job: str, operator: str, executor: int, shard: int, task: int) -> None:
        """Move a shard to a task of its executor."""
        [(index, address)] = self._homes(self.record(job), operator, executor)
        await self._call(address, "move_shard", job=job, operator=operator, executor=index, shard=shard, task=task)

    async def moves(self, job: str) -> list[dict[str, Any]]:
        """Return the newest finished shard moves of every executor."""
        return [move for moves in await self._call_all(self.record(job), "moves") for move in moves]

    async def assignment(self, job: str) -> list[dict[str, Any]]:
        """Which task each shard of each executor belongs to, and where the tasks are."""
        record = self.record(job)
        return [part for parts in await self._call_all(record, "assignment") for part in parts]

    async def state(self, job: str, operator: str, key: list[Any] | None = None) -> list[Any]:
        """Return the state of a stateful operator, a table per executor as Arrow IPC streams; or the row of one key."""
        homes = self._homes(self.record(job), operator, None)
        calls = (
            self._call(address, "state", job=job, operator=operator, executor=index, key=key)
            for index, address in homes
        )
        return [part for parts in await asyncio.gather(*calls) for part in parts]

    async def send(self, job: str, source: str, instance: int, rows: Any) -> bool:
        """Pass rows on to a pushed source; False when it has no room at the moment."""
        record = self.record(job)
        self._check_alive(record)
        taken: bool = await self._call(
            self._source_node(record, source, instance), "send", job=job, source=source, instance=instance, rows=rows
        )
        return taken

    async def close_source(self, job: str, source: str, instance: int) -> None:
        """End a pushed source after what was sent."""
        record = self.record(job)
        address = self._source_node(record, source, instance)
        await self._call(address, "close_source", job=job, source=source, instance=instance)

    @staticmethod
    def _check_alive(record: JobRecord) -> None:
        if record.error is not None:
            raise Relayed(record.error)
        if record.status in ENDED:
            raise JobFailed(f"job {record.name!r} is {record.status.value}: it takes no more rows")

    def _source_node(self, record: JobRecord, source: str, instance: int) -> str:
        pushed = [s.name for s in record.spec.summaries if s.pushed]
        if source not in pushed:
            raise UnknownOperator(f"job {record.name!r} has no pushed source {source!r}: choose from {pushed}")
        return record.nodes[record.spec.homes[source][instance]]

    async def collect(self, job: str, operator: str) -> list[Any]:
        """Return what a sink keeps for the client, a table per node as Arrow IPC streams."""
        record = self.record(job)
        sinks = [s.name for s in record.spec.summaries if s.kind == "sink"]
        if operator not in sinks:
            raise UnknownOperator(f"job {job!r} has no sink {operator!r}: choose from {sinks}")
        return [part for parts in await self._call_all(record, "collect", operator=operator) for part in parts]

    async def dead_letters(self, job: str, operator: str) -> list[Any]:
        """Return the rows that an operator's code could not digest, a table per node as Arrow IPC streams."""
        record = self.record(job)
        known = [name for s in record.spec.summaries for name in s.operators]
        if operator not in known:
            raise UnknownOperator(f"job {job!r} has no operator {operator!r}: choose from {known}")
        return [part for parts in await self._call_all(record, "dead_letters", operator=operator) for part in parts]


def hold(scheduler: Any, coordinator: Coordinator) -> Callable[[], None]:
    """Return what to call often: while jobs run, the scheduler does not count as idle."""

    def tick() -> None:
        if coordinator.running:
            scheduler.idle_since = None

    return tick
