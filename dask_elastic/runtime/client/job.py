"""A handle on a running job."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any, Literal

import pandas as pd
import pyarrow as pa
from dask.utils import parse_timedelta

from dask_elastic.control.recording import loads
from dask_elastic.runtime.client.call import call_scheduler, default_client
from dask_elastic.runtime.client.event_time_view import event_time_table, instants
from dask_elastic.runtime.client.job_state import JobState
from dask_elastic.runtime.client.job_view import html, summary
from dask_elastic.runtime.client.progress import Progress
from dask_elastic.runtime.protocol import job_calls, job_status
from dask_elastic.runtime.protocol.calls import B, Call
from dask_elastic.runtime.protocol.job_description import JobDescription
from dask_elastic.runtime.protocol.job_status import Status
from dask_elastic.runtime.protocol.remote_errors import load_error
from dask_elastic.runtime.protocol.tables import read_table, table_bytes
from dask_elastic.vocab.errors import JobFailed, JobStopped, UnknownJob, UnknownOperator

if TYPE_CHECKING:
    from distributed import Client

    from dask_elastic.vocab.snapshot import Snapshot

POLL_SECONDS = 0.25
ENDED = tuple(sorted(status.value for status in job_status.ENDED))
"""The statuses, as `Job.status` returns them, that a job never leaves."""


class Job:
    """A job on a cluster, found by its name; the job does not depend on this handle.

    Parameters
    ----------
    name : str
        Name of the job.
    client : distributed.Client
        A client of the cluster.
    """

    def __init__(self, name: str, client: Client):
        self.name = name
        self.client = client

    def __repr__(self) -> str:
        return summary(self._describe())

    def _repr_html_(self) -> str:
        return html(self._describe())

    def _ask(self, call: Call[B], /) -> B:
        return call_scheduler(self.client, call)

    def _describe(self) -> JobDescription:
        return self._ask(job_calls.Describe(self.name))

    @property
    def status(self) -> str:
        """One of "starting", "running", "draining", "finished", "stopped" and "failed"."""
        return str(self._describe().status.value)

    @property
    def error(self) -> BaseException | None:
        """The error that the job failed with; None when it has not failed."""
        data = self._describe().error
        return None if data is None else load_error(data)

    def wait(self, timeout: float | str | None = None, *, progress: bool | None = None) -> None:
        """Wait until the job has processed all of its input.

        Parameters
        ----------
        timeout : float or str, optional
            Seconds, or a duration such as ``"30s"``; without it there is no limit.
        progress : bool, optional
            Whether to show a live line; by default in a terminal only.

        Raises
        ------
        JobFailed
            When the job failed; its cause is the error that it failed with.
        JobStopped
            When somebody stopped it.
        TimeoutError
            When it is still running after `timeout` seconds. It goes on.
        KeyboardInterrupt
            On Ctrl-C. The job goes on, and a line says how to stop it.
        """
        seconds = None if timeout is None else float(parse_timedelta(timeout, default="s"))
        deadline = None if seconds is None else time.monotonic() + seconds
        with Progress(progress) as line:
            try:
                described = self._describe()
                while described.live:
                    line.show(described)
                    left = POLL_SECONDS if deadline is None else min(POLL_SECONDS, deadline - time.monotonic())
                    if left <= 0:
                        raise TimeoutError(f"job {self.name!r} is still {described.status.value} after {seconds:g} s")
                    described = self._ask(job_calls.Wait(self.name, left))
                line.show(described)
            except KeyboardInterrupt:
                line.say(f"Job {self.name!r} goes on. Stop it with job.stop(), or find it again with "
                         f"dask_elastic.job({self.name!r}).")  # fmt: skip
                raise
        self._raise_for(described)

    def _raise_for(self, described: JobDescription) -> None:
        if described.error is not None:
            cause = load_error(described.error)
            raise JobFailed(f"job {self.name!r} failed: {cause}") from cause
        if described.status is Status.STOPPED:
            raise JobStopped(f"job {self.name!r} was stopped")

    def drain(self, timeout: float | str | None = None) -> None:
        """Have the sources read no further, and wait until the rows that they have read are processed."""
        self._ask(job_calls.Drain(self.name))
        self.wait(timeout, progress=False)

    def stop(self) -> None:
        """End the job at once; tuples in flight are dropped, state and measures stay readable."""
        self._ask(job_calls.Stop(self.name))

    def forget(self) -> None:
        """End the job if it runs, and free its state on the workers."""
        self._ask(job_calls.Forget(self.name))

    # looking

    def metrics(self) -> pd.DataFrame:
        """Return what was measured last, one row an executor.

        Returns
        -------
        pandas.DataFrame
            Columns: ``operator``, ``executor``, ``node`` (address of the home), ``cores``, ``arrival_rate`` (λ,
            tuples/s), ``service_rate`` (μ, tuples per busy second and core), ``queue`` (tuples), ``latency_p50`` and
            ``latency_p99`` (seconds from the scheduled emission at the source to the end of processing, over the
            last 10 s), ``state_bytes``, ``rows``, ``moves``, ``moves_across`` (moves between nodes); ``throughput``
            (tuples/s that are processed), ``customer_rows`` (mean tuples of a sub-batch as it reaches a task),
            ``sojourn`` (mean seconds from a tuple's arrival at the executor to the end of its processing, over the
            last 2 s), ``bytes_in`` and ``bytes_out`` (bytes/s), ``pending_bytes`` (what remote tasks were sent and
            have not brought home as state), ``recovered`` (how often it lost remote tasks and went on),
            ``recovery_p50`` and ``recovery_p99`` (seconds from such a loss to the first row processed again),
            ``refused`` (messages that were stale or came twice), ``bound`` (whether its threads hold the GIL, so that
            another core on the same worker does not help), and ``event_time`` (every row that is older is processed,
            unless it is late; without a zone, in UTC; missing where no source before it has one).
        """
        described = self._describe()
        columns = [
            "operator", "executor", "node", "cores", "arrival_rate", "service_rate", "queue", "latency_p50",
            "latency_p99", "state_bytes", "rows", "moves", "moves_across", "throughput", "customer_rows", "sojourn",
            "bytes_in", "bytes_out", "pending_bytes", "recovered", "recovery_p50", "recovery_p99", "refused", "bound",
            "event_time",
        ]  # fmt: skip
        bound = set(described.control.bound)
        rows = [
            {**vars(part), "node": described.nodes[part.node], "bound": part.operator in bound}
            for part in described.executors
        ]
        table = pd.DataFrame(rows, columns=columns)
        table["event_time"] = instants(part.event_time for part in described.executors)
        return table.sort_values(["operator", "executor"], ignore_index=True)

    def event_times(self) -> pd.DataFrame:
        """Return how far event time has come, one row an instance of what has one: sources, executors, sinks.

        Returns
        -------
        pandas.DataFrame
            Columns: ``operator``, ``instance``, ``event_time`` (without a zone, in UTC: nothing that is older comes
            from a source any more, or is still to be processed by an executor or written by a sink, unless it is
            late; missing while that is not known), ``late`` (rows of a source that were older than that all the
            same: they are processed, and counted).
        """
        return event_time_table(self._describe().event_times)

    def assignment(self) -> pd.DataFrame:
        """Where everything is, one row a task.

        Returns
        -------
        pandas.DataFrame
            Columns: ``operator``, ``executor``, ``home`` and ``node`` (addresses), ``task``, ``remote``, ``shards``
            (a list of shard numbers).
        """
        parts = self._ask(job_calls.Assignment(self.name))
        # Read after the assignment: a worker may have joined in between.
        nodes = self._describe().nodes
        rows = [
            {
                "operator": part.operator,
                "executor": part.executor,
                "home": nodes[part.home],
                "task": task,
                "node": nodes[node],
                "remote": node != part.home,
                "shards": [shard for shard, owner in enumerate(part.owner) if owner == task],
            }
            for part in parts
            for task, node in sorted(part.node_of_task.items())
        ]
        columns = ["operator", "executor", "home", "task", "node", "remote", "shards"]
        return pd.DataFrame(rows, columns=columns).sort_values(["operator", "executor", "task"], ignore_index=True)

    def moves(self) -> pd.DataFrame:
        """Return the newest finished shard moves, at most 1,000 of each executor, in the order in which they ended.

        Returns
        -------
        pandas.DataFrame
            Columns: ``operator``, ``executor``, ``shard``, ``source`` and ``target`` (tasks), ``across_nodes``,
            ``ended`` (seconds since the epoch), ``pause`` (seconds for which the shard's tuples waited).
        """
        columns = ["operator", "executor", "shard", "source", "target", "across_nodes", "ended", "pause"]
        found = [vars(move) for move in self._ask(job_calls.Moves(self.name))]
        return pd.DataFrame(found, columns=columns).sort_values("ended", ignore_index=True)

    def recoveries(self) -> pd.DataFrame:
        """Return what became of remote tasks that were lost with their worker, at most 1,000 losses of each executor.

        Returns
        -------
        pandas.DataFrame
            Columns: ``operator``, ``executor``, ``node`` (which of the job's workers it was), ``tasks`` and ``shards``
            (how many were lost), ``rows`` (that had to be processed once more), ``lost`` (when that was noticed,
            seconds since the epoch), ``first`` and ``ended`` (when the first and the last of these rows were processed
            again; missing where there are none yet).
        """
        columns = ["operator", "executor", "node", "tasks", "shards", "rows", "lost", "first", "ended"]
        found = [vars(recovery) for recovery in self._ask(job_calls.Recoveries(self.name))]
        table = pd.DataFrame(found, columns=columns)
        return table.astype({"first": float, "ended": float}).sort_values("lost", ignore_index=True)

    def decisions(self) -> pd.DataFrame:
        """Return the newest decisions about the job's cores, at most 1,000, in the order in which they were made.

        Returns
        -------
        pandas.DataFrame
            Columns: ``number``, ``time`` (seconds since the epoch), ``target``, ``measured``, ``predicted`` and
            ``observed`` (mean seconds from source to end of processing: wanted, measured then, expected of the model,
            and measured some periods later), ``feasible`` (whether any number of cores reaches the target),
            ``applied`` (not in a dry run, nor where a change was held back), ``reason``, ``wanted`` (cores by
            executor), ``changes`` (a list: executor, cores by worker before and after, bytes of state moved),
            ``starved`` (cores that are lacking), ``bound`` (operators whose threads hold the GIL), ``moved_bytes``,
            ``seconds`` (that deciding took).
        """
        columns = [
            "number", "time", "target", "measured", "predicted", "observed", "feasible", "applied", "reason", "wanted",
            "changes", "starved", "bound", "moved_bytes", "seconds",
        ]  # fmt: skip
        return pd.DataFrame(json.loads(self._ask(job_calls.Decisions(self.name))), columns=columns)

    def snapshots(self, last: int | None = None) -> list[Snapshot]:
        """Return what decisions were made from of late: the whole cluster, once a period, oldest first.

        Parameters
        ----------
        last : int, optional
            How many at most. The scheduler keeps 600, or 32 MiB of them.

        See Also
        --------
        dask_elastic.save_snapshots, dask_elastic.replay
        """
        return loads(self._ask(job_calls.Snapshots(self.name, last)))

    def state(self, operator: str) -> JobState:
        """Return the state of a stateful operator, readable while the job runs and after it has ended.

        Parameters
        ----------
        operator : str
            Name of the operator.
        """
        return JobState(self._ask, self.name, operator)

    def collect(self, sink: str) -> pa.Table:
        """Return what a `sinks.Collect` holds, in no particular order between nodes.

        Parameters
        ----------
        sink : str
            Name of the sink.
        """
        parts = [read_table(part) for part in self._ask(job_calls.Collect(self.name, sink))]
        return pa.concat_tables(parts) if parts else pa.table({})

    def dead_letters(self, operator: str | None = None) -> Any:
        """Rows that user code could not digest, under ``on_error="skip"``.

        Parameters
        ----------
        operator : str, optional
            An operator; without it, how many rows each operator set aside.

        Returns
        -------
        dict of str to int, or pyarrow.Table
            Exact counts; or the operator's rows, with the error of each in the column ``__error``. Beyond 64 MiB on
            a worker rows are counted but not kept.
        """
        if operator is None:
            return dict(self._describe().dead_letters)
        parts = [read_table(part) for part in self._ask(job_calls.DeadLetters(self.name, operator))]
        return pa.concat_tables(parts) if parts else pa.table({})

    # acting

    def send(self, rows: pa.Table | pa.RecordBatch, source: str | None = None) -> None:
        """Send rows to a `sources.Push`; blocks while the job cannot take more.

        Parameters
        ----------
        rows : pyarrow.Table or pyarrow.RecordBatch
            With the schema of the source.
        source : str, optional
            Name of the source; may be left out where the topology has just one to push to.
        """
        table = pa.Table.from_batches([rows]) if isinstance(rows, pa.RecordBatch) else rows
        if not isinstance(table, pa.Table):
            raise TypeError(f"send takes a pyarrow Table or RecordBatch, not {type(rows).__name__}")
        source = source or self._pushed_source()
        for part in _chunks(table):
            body = memoryview(table_bytes(part))
            while not self._ask(job_calls.Send(self.name, source, 0, body)):
                pass  # each attempt waits for room at the source; an ended job raises

    def end_of_input(self, source: str | None = None) -> None:
        """Say that nothing more will be sent to a `sources.Push`; the job can then finish."""
        self._ask(job_calls.CloseSource(self.name, source or self._pushed_source(), 0))

    def _pushed_source(self) -> str:
        pushed = [component.name for component in self._describe().components if component.pushed]
        if not pushed:
            raise UnknownOperator(f"job {self.name!r} has no sources.Push: nothing can be sent to it")
        if len(pushed) > 1:
            raise UnknownOperator(f"job {self.name!r} has the pushed sources {pushed}: name one of them with source=")
        return str(pushed[0])

    def set_cores(
        self, operator: str, cores: int | dict[str, int] | Literal["auto"], executor: int | None = None
    ) -> None:
        """Give executors another number of cores while they run; the control loop then leaves these alone.

        Parameters
        ----------
        operator : str
            A stateful operator.
        cores : int or dict of str to int or "auto"
            Cores of each executor, its home's first; or cores on each worker, by address; or ``"auto"``, which gives
            the executors back to the control loop. More than are free share slots: the job is ``oversubscribed``.
        executor : int, optional
            One executor of the operator; all of them if left out.
        """
        self._ask(job_calls.SetCores(self.name, operator, cores, executor))

    def move_shard(self, operator: str, shard: int, task: int, executor: int = 0) -> None:
        """Move a shard to another task of its executor; returns when the move has begun.

        Parameters
        ----------
        operator : str
            A stateful operator.
        shard, task : int
            The shard and the task it goes to; `assignment` lists both.
        executor : int
            The executor that they belong to.
        """
        self._ask(job_calls.MoveShard(self.name, operator, executor, shard, task))


SEND_ROWS = 65_536
SEND_BYTES = 8 * 2**20


def _chunks(table: pa.Table) -> list[pa.Table]:
    parts = max(1, -(-table.num_rows // SEND_ROWS), -(-table.nbytes // SEND_BYTES))
    size = max(1, -(-table.num_rows // parts))
    return [table.slice(start, size) for start in range(0, table.num_rows, size)]


def job(name: str, client: Client | None = None) -> Job:
    """Find a job by its name, from any client of the cluster.

    Raises
    ------
    UnknownJob
        If the cluster knows none of that name.
    """
    found = Job(name, client or default_client())
    found.status  # noqa: B018 - raises for a job that is not known
    return found


def jobs(client: Client | None = None) -> list[Job]:
    """All jobs that a cluster knows, oldest first; those that ended a while ago are forgotten.

    Parameters
    ----------
    client : distributed.Client, optional
        The cluster; the current client if left out.
    """
    client = client or default_client()
    try:
        known = call_scheduler(client, job_calls.ListJobs())
    except UnknownJob:
        return []
    return [Job(described.name, client) for described in known]
