"""A handle on a running job."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any, Literal

import pandas as pd
import pyarrow as pa
from dask.utils import parse_timedelta
from distributed import get_client
from distributed.protocol import to_serialize

from dask_elastic.control.recording import loads
from dask_elastic.runtime.client.event_time_view import event_time_table, instants
from dask_elastic.runtime.client.job_state import JobState
from dask_elastic.runtime.client.job_view import html, summary
from dask_elastic.runtime.client.progress import Progress
from dask_elastic.runtime.protocol.remote_errors import load_error
from dask_elastic.runtime.protocol.tables import read_table, table_bytes
from dask_elastic.vocab.errors import JobFailed, JobStopped, SubmitError, UnknownJob, UnknownOperator

if TYPE_CHECKING:
    from distributed import Client

    from dask_elastic.vocab.snapshot import Snapshot

POLL_SECONDS = 0.25
ENDED = ("finished", "stopped", "failed")


def default_client() -> Client:
    """Return the current Dask client.

    Returns
    -------
    distributed.Client
        The client that `distributed.get_client` finds.

    Raises
    ------
    SubmitError
        If there is no client.
    """
    try:
        client: Client = get_client()
    except ValueError as error:
        raise SubmitError("there is no Dask client: create one with dask.distributed.Client(), or pass it") from error
    return client


def call(client: Client, operation: str, **arguments: Any) -> Any:
    """Call an operation of dask_elastic on the scheduler.

    Parameters
    ----------
    client : distributed.Client
        A client of the cluster.
    operation : str
        Name of the operation.
    **arguments
        Its arguments.

    Returns
    -------
    object
        The scheduler's answer.

    Raises
    ------
    UnknownJob
        If the scheduler does not host dask_elastic, since no job was ever submitted to it.
    ElasticError
        The error that the operation raised on the scheduler or on a worker.
    """
    reply = client.sync(_ask, client, operation, arguments)
    if isinstance(reply, dict) and "answer" in reply:
        return reply["answer"]
    if isinstance(reply, dict) and "error" in reply:
        raise load_error(reply["error"])
    raise UnknownJob("this cluster does not host dask_elastic: no job was ever submitted to it")


async def _ask(client: Client, operation: str, arguments: dict[str, Any]) -> Any:
    return await getattr(client.scheduler, f"elastic_{operation}")(**arguments)


class Job:
    """A handle on a job on a cluster; the job keeps running when the handle and its client are closed.

    `submit` returns one, and `dask_elastic.job` makes one from the job's name.

    Parameters
    ----------
    name : str
        Name of the job.
    client : distributed.Client
        A client of the cluster.

    Examples
    --------
    Submit a job that a program feeds, with two cores for its one executor:

    >>> import dask_elastic as de
    >>> from dask.distributed import Client
    >>> client = Client(n_workers=1, threads_per_worker=2, processes=False, dashboard_address=None)
    >>> topology = de.Topology("letters")
    >>> letters = topology.source("letters", de.sources.Push(pa.schema({"letter": pa.string()})))
    >>> counts = {"seen": de.aggregate.Count()}
    >>> counted = letters.key_by("letter").compute(counts, name="per_letter", executors=1, shards=4)
    >>> counted.sink(de.sinks.Collect(), name="updates")
    >>> job = de.submit(topology, client, cores={"per_letter": 2})

    Move a shard to another task while the job runs:

    >>> job.assignment()[["operator", "executor", "task", "remote", "shards"]]
         operator  executor  task  remote  shards
    0  per_letter         0     0   False  [0, 2]
    1  per_letter         0     1   False  [1, 3]
    >>> job.move_shard("per_letter", shard=0, task=1)

    Send rows, end the input and wait until all rows are processed:

    >>> job.send(pa.table({"letter": ["a", "b", "a"]}))
    >>> job.end_of_input()
    >>> job.wait(timeout="30s", progress=False)
    >>> job.status, job.error
    ('finished', None)

    Read the results:

    >>> job.state("per_letter").get("a")
    {'letter': 'a', 'seen': 2}
    >>> job.collect("updates").num_rows
    2
    >>> job.dead_letters()
    {}

    Read the measurements; each table has more columns than are shown here:

    >>> job.metrics()[["operator", "executor", "cores", "rows", "moves"]]
         operator  executor  cores  rows  moves
    0  per_letter         0      2     3      1
    >>> job.moves()[["operator", "shard", "source", "target"]]
         operator  shard  source  target
    0  per_letter      0       0       1
    >>> job.recoveries().empty, job.event_times().empty
    (True, True)
    >>> measured = job.decisions(), job.snapshots(last=10)

    Free the state, then run the topology again and end that job early:

    >>> job.forget()
    >>> again = de.submit(topology, client)
    >>> again.set_cores("per_letter", 1)
    >>> again.drain()
    >>> again.status
    'finished'
    >>> last = de.submit(topology, client)
    >>> last.stop()
    >>> last.status
    'stopped'
    >>> client.close()
    """

    def __init__(self, name: str, client: Client):
        self.name = name
        self.client = client

    def __repr__(self) -> str:
        return summary(self._describe())

    def _repr_html_(self) -> str:
        return html(self._describe())

    def _call(self, operation: str, **arguments: Any) -> Any:
        return call(self.client, operation, job=self.name, **arguments)

    def _describe(self) -> dict[str, Any]:
        described: dict[str, Any] = self._call("describe")
        return described

    @property
    def status(self) -> str:
        """The job's status: "starting", "running", "draining", "finished", "stopped" or "failed"."""
        status: str = self._describe()["status"]
        return status

    @property
    def error(self) -> BaseException | None:
        """The error that the job failed with, None if it did not fail."""
        data = self._describe()["error"]
        return None if data is None else load_error(data)

    def wait(self, timeout: float | str | None = None, *, progress: bool | None = None) -> None:
        """Wait until the job has processed all of its input.

        Parameters
        ----------
        timeout : float or str, optional
            Seconds, or a duration such as ``"30s"``; without it there is no limit.
        progress : bool, optional
            Whether to show a live line; by default only in a terminal.

        Raises
        ------
        JobFailed
            If the job failed; its ``__cause__`` is the error that it failed with.
        JobStopped
            If the job was stopped.
        TimeoutError
            If the job is still running after `timeout`. The job continues.
        KeyboardInterrupt
            On Ctrl-C. The job continues; a printed line says how to stop it.
        """
        seconds = None if timeout is None else float(parse_timedelta(timeout, default="s"))
        deadline = None if seconds is None else time.monotonic() + seconds
        with Progress(progress) as line:
            try:
                described = self._describe()
                while described["status"] not in ENDED:
                    line.show(described)
                    left = POLL_SECONDS if deadline is None else min(POLL_SECONDS, deadline - time.monotonic())
                    if left <= 0:
                        raise TimeoutError(f"job {self.name!r} is still {described['status']} after {seconds:g} s")
                    described = self._call("wait", timeout=left)
                line.show(described)
            except KeyboardInterrupt:
                line.say(f"Job {self.name!r} goes on. Stop it with job.stop(), or find it again with "
                         f"dask_elastic.job({self.name!r}).")  # fmt: skip
                raise
        self._raise_for(described)

    def _raise_for(self, described: dict[str, Any]) -> None:
        if described["status"] == "failed":
            cause = load_error(described["error"])
            raise JobFailed(f"job {self.name!r} failed: {cause}") from cause
        if described["status"] == "stopped":
            raise JobStopped(f"job {self.name!r} was stopped")

    def drain(self, timeout: float | str | None = None) -> None:
        """Stop the sources, and wait until all rows that they have read are processed.

        Parameters
        ----------
        timeout : float or str, optional
            Seconds, or a duration such as ``"30s"``; without it there is no limit.

        Raises
        ------
        JobFailed
            If the job failed.
        JobStopped
            If the job was stopped.
        TimeoutError
            If the job is still draining after `timeout`. It continues to drain.
        """
        self._call("drain")
        self.wait(timeout, progress=False)

    def stop(self) -> None:
        """End the job at once. Rows in flight are dropped; state and measurements stay readable."""
        self._call("stop")

    def forget(self) -> None:
        """End the job if it is running, and free its state on the workers."""
        self._call("forget")

    # looking

    def metrics(self) -> pd.DataFrame:
        """Return the newest measurements, one row per executor.

        Returns
        -------
        pandas.DataFrame
            Columns: ``operator``, ``executor``, ``node`` (address of the home), ``cores``, ``arrival_rate`` (λ,
            tuples/s), ``service_rate`` (μ, tuples per busy second and core), ``queue`` (tuples), ``latency_p50`` and
            ``latency_p99`` (seconds from the scheduled emission at the source to the end of processing, over the
            last 10 s), ``state_bytes``, ``rows``, ``moves``, ``moves_across`` (moves between nodes); ``throughput``
            (processed tuples/s), ``customer_rows`` (mean tuples of a sub-batch when it reaches a task), ``sojourn``
            (mean seconds from a tuple's arrival at the executor to the end of its processing, over the last 2 s),
            ``bytes_in`` and ``bytes_out`` (bytes/s), ``pending_bytes`` (sub-batches sent to remote tasks whose state
            changes have not been flushed home), ``recovered`` (how often the executor lost remote tasks and
            recovered), ``recovery_p50`` and ``recovery_p99`` (seconds from such a loss to the first row processed
            again), ``refused`` (stale and duplicate messages), ``bound`` (whether its threads hold the GIL, so that
            another core on the same worker does not help), and ``event_time`` (the watermark: all older rows are
            processed, except late ones; in UTC without a time zone; missing if no source upstream has event time).
        """
        described = self._describe()
        columns = [
            "operator", "executor", "node", "cores", "arrival_rate", "service_rate", "queue", "latency_p50",
            "latency_p99", "state_bytes", "rows", "moves", "moves_across", "throughput", "customer_rows", "sojourn",
            "bytes_in", "bytes_out", "pending_bytes", "recovered", "recovery_p50", "recovery_p99", "refused", "bound",
            "event_time",
        ]  # fmt: skip
        bound = set(described["bound"])
        rows = [
            {**part, "node": described["nodes"][part["node"]], "bound": part["operator"] in bound}
            for part in described["executors"]
        ]
        table = pd.DataFrame(rows, columns=columns)
        table["event_time"] = instants(part["event_time"] for part in rows)
        return table.sort_values(["operator", "executor"], ignore_index=True)

    def event_times(self) -> pd.DataFrame:
        """Return the watermarks, one row per source instance, executor and sink instance that has event time.

        Returns
        -------
        pandas.DataFrame
            Columns: ``operator``, ``instance``, ``event_time`` (the watermark, in UTC without a time zone: a source
            emits no older rows, an executor has processed and a sink has written all older rows, except late ones;
            missing while it is unknown), ``late`` (rows of a source that were older than its watermark; they are
            processed, and counted here).
        """
        return event_time_table(self._describe()["event_times"])

    def assignment(self) -> pd.DataFrame:
        """Return where tasks and shards are, one row per task.

        Returns
        -------
        pandas.DataFrame
            Columns: ``operator``, ``executor``, ``home`` and ``node`` (addresses), ``task``, ``remote``, ``shards``
            (a list of shard numbers).
        """
        parts = self._call("assignment")
        # Asked afterwards: a worker may just have joined.
        nodes = self._describe()["nodes"]
        rows = []
        for part in parts:
            for task, node in part["node_of_task"]:
                rows.append(
                    {
                        "operator": part["operator"],
                        "executor": part["executor"],
                        "home": nodes[part["home"]],
                        "task": task,
                        "node": nodes[node],
                        "remote": node != part["home"],
                        "shards": [shard for shard, owner in enumerate(part["owner"]) if owner == task],
                    }
                )
        columns = ["operator", "executor", "home", "task", "node", "remote", "shards"]
        return pd.DataFrame(rows, columns=columns).sort_values(["operator", "executor", "task"], ignore_index=True)

    def moves(self) -> pd.DataFrame:
        """Return the newest finished shard moves, at most 1,000 per executor, in the order in which they ended.

        Returns
        -------
        pandas.DataFrame
            Columns: ``operator``, ``executor``, ``shard``, ``source`` and ``target`` (tasks), ``across_nodes``,
            ``ended`` (seconds since the epoch), ``pause`` (seconds for which the shard's tuples waited).
        """
        columns = ["operator", "executor", "shard", "source", "target", "across_nodes", "ended", "pause"]
        return pd.DataFrame(self._call("moves"), columns=columns).sort_values("ended", ignore_index=True)

    def recoveries(self) -> pd.DataFrame:
        """Return how executors recovered from lost remote tasks, at most 1,000 losses per executor.

        Returns
        -------
        pandas.DataFrame
            Columns: ``operator``, ``executor``, ``node`` (number of the lost worker within the job), ``tasks`` and
            ``shards`` (how many were lost), ``rows`` (to be processed again), ``lost`` (when the loss was detected,
            seconds since the epoch), ``first`` and ``ended`` (when the first and the last of these rows had been
            processed again; missing until then).
        """
        columns = ["operator", "executor", "node", "tasks", "shards", "rows", "lost", "first", "ended"]
        table = pd.DataFrame(self._call("recoveries"), columns=columns)
        return table.astype({"first": float, "ended": float}).sort_values("lost", ignore_index=True)

    def decisions(self) -> pd.DataFrame:
        """Return the newest decisions about the job's cores, at most 1,000, in the order in which they were made.

        Returns
        -------
        pandas.DataFrame
            Columns: ``number``, ``time`` (seconds since the epoch), ``target``, ``measured``, ``predicted`` and
            ``observed`` (mean seconds from source to end of processing: the target, the measurement at that time, the
            model's prediction, and the measurement some periods later), ``feasible`` (whether any number of cores
            reaches the target), ``applied`` (false in a dry run and if the guard held the change back), ``reason``,
            ``wanted`` (cores by executor), ``changes`` (a list: executor, cores by worker before and after, bytes of
            state moved), ``starved`` (missing cores), ``bound`` (operators whose threads hold the GIL),
            ``moved_bytes``, ``seconds`` (duration of the decision).
        """
        columns = [
            "number", "time", "target", "measured", "predicted", "observed", "feasible", "applied", "reason", "wanted",
            "changes", "starved", "bound", "moved_bytes", "seconds",
        ]  # fmt: skip
        return pd.DataFrame(json.loads(self._call("decisions")), columns=columns)

    def snapshots(self, last: int | None = None) -> list[Snapshot]:
        """Return the newest snapshots of the whole cluster, from which the control loop made its decisions.

        Parameters
        ----------
        last : int, optional
            How many at most. The scheduler keeps the newest 600, or 32 MiB of them.

        Returns
        -------
        list of Snapshot
            One for each period of the control loop, oldest first.

        See Also
        --------
        dask_elastic.save_snapshots, dask_elastic.replay
        """
        return loads(self._call("snapshots", last=last))

    def state(self, operator: str) -> JobState:
        """Return the state of a stateful operator, readable while the job runs and after it has ended.

        Parameters
        ----------
        operator : str
            Name of the operator.

        Returns
        -------
        JobState
            Reads the state; each of its methods reads anew.
        """
        return JobState(self._call, operator)

    def collect(self, sink: str) -> pa.Table:
        """Return the rows that a `sinks.Collect` holds.

        Parameters
        ----------
        sink : str
            Name of the sink.

        Returns
        -------
        pyarrow.Table
            The rows; those of one node in the order in which they were written, nodes in no particular order.
        """
        parts = [read_table(part) for part in self._call("collect", operator=sink)]
        return pa.concat_tables(parts) if parts else pa.table({})

    def dead_letters(self, operator: str | None = None) -> Any:
        """Return the rows on which user code raised, under ``on_error="skip"``.

        Parameters
        ----------
        operator : str, optional
            Name of an operator; without it, only the counts are returned.

        Returns
        -------
        dict of str to int, or pyarrow.Table
            Without `operator`, the exact number of rows by operator; with it, the rows, and the error of each in the
            column ``__error``. Beyond 64 MiB on a worker, rows are counted but not kept.
        """
        if operator is None:
            return dict(self._describe()["dead_letters"])
        parts = [read_table(part) for part in self._call("dead_letters", operator=operator)]
        return pa.concat_tables(parts) if parts else pa.table({})

    # acting

    def send(self, rows: pa.Table | pa.RecordBatch, source: str | None = None) -> None:
        """Send rows to a `sources.Push`; blocks while the source's mailbox is full.

        Parameters
        ----------
        rows : pyarrow.Table or pyarrow.RecordBatch
            Rows with the schema of the source.
        source : str, optional
            Name of the source; may be left out if the topology has only one `sources.Push`.

        Raises
        ------
        TypeError
            If `rows` is neither a Table nor a RecordBatch.
        SchemaMismatch
            If the rows do not have the source's columns.
        UnknownOperator
            If the job has no `sources.Push`, or several and `source` is left out.
        """
        table = pa.Table.from_batches([rows]) if isinstance(rows, pa.RecordBatch) else rows
        if not isinstance(table, pa.Table):
            raise TypeError(f"send takes a pyarrow Table or RecordBatch, not {type(rows).__name__}")
        source = source or self._pushed_source()
        for part in _chunks(table):
            body = memoryview(table_bytes(part))
            while not self._call("send", source=source, instance=0, rows=to_serialize(body)):
                pass  # each attempt waits for room at the source; an ended job raises

    def end_of_input(self, source: str | None = None) -> None:
        """End the input of a `sources.Push`, so that the job can finish.

        Parameters
        ----------
        source : str, optional
            Name of the source; may be left out if the topology has only one `sources.Push`.
        """
        self._call("close_source", source=source or self._pushed_source(), instance=0)

    def _pushed_source(self) -> str:
        pushed = [name for name, _, _, _, is_pushed in self._describe()["operators"] if is_pushed]
        if not pushed:
            raise UnknownOperator(f"job {self.name!r} has no sources.Push: nothing can be sent to it")
        if len(pushed) > 1:
            raise UnknownOperator(f"job {self.name!r} has the pushed sources {pushed}: name one of them with source=")
        return str(pushed[0])

    def set_cores(
        self, operator: str, cores: int | dict[str, int] | Literal["auto"], executor: int | None = None
    ) -> None:
        """Set the cores of executors while they run; the control loop then no longer changes them.

        Parameters
        ----------
        operator : str
            Name of a stateful operator.
        cores : int or dict of str to int or "auto"
            The number of cores of each executor, allocated first on its home; or the cores on each worker, by address;
            or ``"auto"``, which returns the executors to the control loop. If there are not enough free slots,
            executors share slots and the job is ``oversubscribed``.
        executor : int, optional
            Number of one executor of the operator; all of them if left out.
        """
        self._call("set_cores", operator=operator, cores=cores, executor=executor)

    def move_shard(self, operator: str, shard: int, task: int, executor: int = 0) -> None:
        """Move a shard to another task of its executor; return when the move has begun.

        Parameters
        ----------
        operator : str
            Name of a stateful operator.
        shard, task : int
            The shard and its new task; `assignment` lists both.
        executor : int
            Number of their executor.
        """
        self._call("move_shard", operator=operator, executor=executor, shard=shard, task=task)


SEND_ROWS = 65_536
SEND_BYTES = 8 * 2**20


def _chunks(table: pa.Table) -> list[pa.Table]:
    parts = max(1, -(-table.num_rows // SEND_ROWS), -(-table.nbytes // SEND_BYTES))
    size = max(1, -(-table.num_rows // parts))
    return [table.slice(start, size) for start in range(0, table.num_rows, size)]


def job(name: str, client: Client | None = None) -> Job:
    """Find a job by its name, from any client of the cluster.

    Parameters
    ----------
    name : str
        Name of the job.
    client : distributed.Client, optional
        A client of the cluster; the current client if left out.

    Returns
    -------
    Job
        A handle on the job, which may have ended.

    Raises
    ------
    UnknownJob
        If the cluster has no job of that name.

    Examples
    --------
    >>> import dask_elastic as de
    >>> from dask.distributed import Client
    >>> topology = de.Topology("letters")
    >>> topology.source("letters", de.sources.Arrow(pa.table({"letter": ["a"]}))).sink(de.sinks.Collect(), name="out")
    >>> with Client(n_workers=1, processes=False, dashboard_address=None) as client:
    ...     submitted = de.submit(topology, client)
    ...     submitted.wait(progress=False)
    ...     de.job("letters", client).status
    'finished'
    """
    found = Job(name, client or default_client())
    found.status  # noqa: B018 - raises for a job that is not known
    return found


def jobs(client: Client | None = None) -> list[Job]:
    """Return the jobs of a cluster.

    Parameters
    ----------
    client : distributed.Client, optional
        A client of the cluster; the current client if left out.

    Returns
    -------
    list of Job
        Handles on all jobs, oldest first. The scheduler forgets the oldest of many ended jobs.

    Examples
    --------
    >>> from dask.distributed import Client
    >>> with Client(n_workers=1, processes=False, dashboard_address=None) as client:
    ...     jobs(client)
    []
    """
    client = client or default_client()
    try:
        known = call(client, "known")
    except UnknownJob:
        return []
    return [Job(described["name"], client) for described in known]
