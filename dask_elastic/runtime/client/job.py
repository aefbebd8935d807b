"""A handle on a running job."""

from __future__ import annotations

import os
from html import escape
from typing import TYPE_CHECKING, NoReturn

from dask_elastic.checkpoint.folder import CheckpointFolder
from dask_elastic.runtime.client.call import call_scheduler, checked_client
from dask_elastic.runtime.client.dashboard_page import dashboard_page
from dask_elastic.runtime.client.deadline import deadline_of
from dask_elastic.runtime.client.job_card import card
from dask_elastic.runtime.client.job_commands import JobCommands
from dask_elastic.runtime.client.job_input import JobInput, seconds_between, seconds_of
from dask_elastic.runtime.client.job_reader import JobReader
from dask_elastic.runtime.client.job_view import summary
from dask_elastic.runtime.client.live_card import show
from dask_elastic.runtime.client.progress import Progress
from dask_elastic.runtime.client.senders import doubt, drop
from dask_elastic.runtime.client.window_commands import WindowCommands
from dask_elastic.runtime.protocol import job_calls
from dask_elastic.runtime.protocol.calls import B, Call
from dask_elastic.runtime.protocol.job_description import JobDescription
from dask_elastic.runtime.protocol.job_end import raise_for_end, warn_of_end
from dask_elastic.runtime.protocol.remote_errors import error_text, load_error
from dask_elastic.vocab.errors import ElasticError, JobFailed, SchedulerLost, UnknownJob

if TYPE_CHECKING:
    from distributed import Client


class Job(JobInput, JobReader, JobCommands, WindowCommands):
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

    >>> import asyncio
    >>> import dask_elastic as de
    >>> import pyarrow as pa
    >>> from dask.distributed import Client
    >>> client = Client(n_workers=1, threads_per_worker=2, processes=False, dashboard_address=None)
    >>> topology = de.Topology("letters")
    >>> letters = topology.source("letters", de.sources.Push(pa.schema({"letter": pa.string()})))
    >>> counts = {"seen": de.aggregate.Count()}
    >>> counted = letters.key_by("letter").compute(counts, name="per_letter", executors=1, shards=4)
    >>> counted.sink(de.sinks.Collect(), name="updates")
    >>> job = de.submit(topology, client, cores={"per_letter": 2}, gather_shards=False)

    Move a shard to another task while the job runs:

    >>> job.assignment()[["operator", "executor", "task", "remote", "shards"]]
         operator  executor  task  remote  shards
    0  per_letter         0     0   False  [0, 2]
    1  per_letter         0     1   False  [1, 3]
    >>> job.move_shard("per_letter", shard=0, task=1)

    Send rows, end the input and wait until all rows are processed:

    >>> job.send(pa.table({"letter": ["a", "b", "a"]}))
    >>> job.flush()
    >>> job.end_of_input()
    >>> job.wait(timeout="30s", progress=False)
    >>> job.status, job.error
    ('finished', None)

    Read the results:

    >>> job.state("per_letter").get("a")
    {'letter': 'a', 'seen': 2}
    >>> updates = job.collect("updates").to_pylist()  # Of each letter one or more: batches may be divided.
    >>> sorted({row["letter"]: row["seen"] for row in updates}.items())
    [('a', 2), ('b', 1)]
    >>> job.dead_letters()
    {}

    Read the measurements; each table has more columns than are shown here:

    >>> job.metrics()[["operator", "executor", "cores", "rows", "moves"]]
         operator  executor  cores  rows  moves
    0  per_letter         0      2     3      1
    >>> job.moves()[["operator", "shard", "source", "target"]]
         operator  shard  source  target
    0  per_letter      0       0       1
    >>> job.recoveries().empty, job.event_times().empty, job.stalled().empty
    (True, True, True)
    >>> job.restarts().empty  # Of the whole job, from a checkpoint.
    True
    >>> job.computes().empty, sorted(job.rates())  # No computes share tasks.
    (True, [('letters', 'per_letter'), ('per_letter', 'updates')])
    >>> measured = job.decisions(), job.snapshots(last=10)
    >>> job.card()
    letters: finished · ... s · 3 rows · ...

    Free the state, then run the topology again and end that job early:

    >>> job.forget()
    >>> again = de.submit(topology, client)
    >>> again.set_cores("per_letter", 1)
    >>> asyncio.run(again.asend(pa.table({"letter": ["c"]})))
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

    def __copy__(self) -> Job:
        return Job(self.name, self.client)

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"job {self.name!r} is bound to its client and cannot be sent to another process: send its name, "
            f"{self.name!r}, and call dask_elastic.job(name) in a task of Dask, or dask_elastic.job(name, client) "
            "elsewhere, with a client of the cluster."
        )

    def __repr__(self) -> str:
        if self.client.asynchronous:  # its event loop cannot wait for the scheduler
            return f"<Job {self.name}>"
        try:
            return summary(self._describe())
        except (SchedulerLost, UnknownJob) as error:  # an interpreter shows it as often as it likes
            return f"<Job {self.name}: {error}>"

    def _repr_html_(self) -> str:
        if self.client.asynchronous:
            return f"<p>{escape(self.name)}</p>"
        try:
            return card(self._describe(), dashboard_page(self.client, self.name))
        except (SchedulerLost, UnknownJob) as error:
            return f"<p>{escape(self.name)}: {escape(str(error))}</p>"

    def _ask(self, call: Call[B], /, deadline: float | None = None) -> B:
        return call_scheduler(self.client, call, deadline)

    def _describe(self) -> JobDescription:
        return self._noted(self._ask(job_calls.Describe(self.name)))

    def _noted(self, described: JobDescription) -> JobDescription:
        """Have `send` raise at once when the job is known to have ended."""
        if not described.live:
            doubt(self.client, self.name)
        return described

    @property
    def status(self) -> str:
        """The job's status: "starting", "running", "draining", "restarting", "finished", "stopped" or "failed"."""
        return str(self._describe().status.value)

    @property
    def error(self) -> BaseException | None:
        """The error that the job failed with; a `JobFailed` if its class is not installed here; None without one."""
        data = self._describe().error
        if data is None:
            return None
        try:
            return load_error(data)
        except Exception:  # unpickling runs code of the error's class, which may raise anything
            return JobFailed(error_text(data))

    def wait(self, timeout: float | str | None = None, *, progress: bool | None = None) -> None:
        """Wait until the job has processed all of its input, and its last files are in the folder of its checkpoints.

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
        ValueError
            If `timeout` is no duration.
        TimeoutError
            If the job still runs after `timeout`, and continues; if it has finished, and its last files are still being
            written then; or if the scheduler does not answer.
        KeyboardInterrupt
            On Ctrl-C. The job continues; a printed line says how to stop it.

        Warns
        -----
        UserWarning
            If the job has finished, but workers or storage do not answer: the folder of its checkpoints may still
            change. `JobFailed` and `JobStopped` have a note then.
        """
        warn_of_end(self._wait(seconds := seconds_of(timeout), deadline_of(seconds), progress), 2)

    def _wait(self, seconds: float | None, end: float | None, progress: bool | None) -> JobDescription:
        with Progress(progress) as line:
            try:
                described = line.follow(lambda left: self._noted(self._ask(job_calls.Wait(self.name, left), end)), end)
            except KeyboardInterrupt:
                if line.follows and not getattr(self.client, "reports_interrupts", False):
                    line.say(f"Job {self.name!r} goes on. Stop it with job.stop(), or find it again with "
                             f"dask_elastic.job({self.name!r}).")  # fmt: skip
                raise
        raise_for_end(described, "" if seconds is None else f" after {seconds:g} s")
        return described

    def card(self, every: float | str = "1s") -> None:
        """Show a card of the job in a notebook, and update it until the job has ended.

        The call returns at once, and other cells can run meanwhile. The card has the job's status, the target and the
        measured latency, rows per second, cores, state, and a link to the job's page on the dashboard. Outside
        notebooks it is one line that is not updated.

        Parameters
        ----------
        every : float or str
            Time between two updates: seconds, or a duration such as ``"500ms"``.

        Raises
        ------
        ValueError
            If `every` is no duration above 0.
        """
        seconds = seconds_between(every)
        page = dashboard_page(self.client, self.name)
        show(self._describe(), page, lambda left: self._noted(self._ask(job_calls.Wait(self.name, left))), seconds)

    def drain(self, timeout: float | str | None = None) -> None:
        """Stop the sources, and wait until all rows that they have read, or this client has sent, are processed.

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
        ValueError
            If `timeout` is no duration.
        TimeoutError
            If the job is still draining after `timeout`, and continues to; if its sources have not taken the rows sent
            by this client, and it runs on, since these would be lost; or as `wait` raises it.
        ElasticError
            If rows that this client has sent were not taken; see `send`.
        """
        deadline = deadline_of(seconds := seconds_of(timeout))
        try:
            self.flush(seconds)
        except ElasticError as lost:
            try:
                warn_of_end(self._drain(seconds, deadline), 2)
            except BaseException as error:  # a traceback does not show what comes before a cause
                error.add_note(f"Before that, rows of this client were not taken: {lost}")
                raise
            raise
        warn_of_end(self._drain(seconds, deadline), 2)

    def _drain(self, seconds: float | None, deadline: float | None) -> JobDescription:
        self._ask(job_calls.Drain(self.name), deadline)
        return self._wait(seconds, deadline, progress=False)

    def stop(self, *, savepoint: str | os.PathLike[str] | None = None) -> None:
        """End the job at once. Rows in flight are dropped; state and measurements stay readable.

        Parameters
        ----------
        savepoint : str or path, optional
            Take a savepoint in this folder first. The job processes no row that the savepoint lacks: sources halt
            behind it, and sinks commit all rows before it.

        Raises
        ------
        CheckpointError
            If the savepoint cannot be taken; see `savepoint`. The job continues.
        JobEnded
            If the job has ended before it could be taken.

        Warns
        -----
        UserWarning
            If workers or storage do not answer: the folder of the job's checkpoints may still change.
        """
        if savepoint is not None:
            self._ask(job_calls.TakeSavepoint(self.name, CheckpointFolder(savepoint).url, stop=True))
        else:
            described = self._ask(job_calls.Stop(self.name))
        drop(self.client, self.name)
        if savepoint is None:
            warn_of_end(described, 2)

    def forget(self) -> None:
        """End the job if it is running, and free its state on the workers.

        Warns
        -----
        UserWarning
            As `stop`.
        """
        described = self._ask(job_calls.Forget(self.name))
        drop(self.client, self.name)
        warn_of_end(described, 2)


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
    >>> import pyarrow as pa
    >>> from dask.distributed import Client
    >>> topology = de.Topology("letters")
    >>> topology.source("letters", de.sources.Arrow(pa.table({"letter": ["a"]}))).sink(de.sinks.Collect(), name="out")
    >>> with Client(n_workers=1, processes=False, dashboard_address=None) as client:
    ...     submitted = de.submit(topology, client)
    ...     submitted.wait(progress=False)
    ...     de.job("letters", client).status
    'finished'
    """
    found = Job(name, checked_client(client))
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
    client = checked_client(client)
    try:
        known = call_scheduler(client, job_calls.ListJobs())
    except UnknownJob:
        return []
    return [Job(described.name, client) for described in known]
