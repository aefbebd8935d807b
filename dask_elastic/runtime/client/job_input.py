"""What a job's handle sends: rows to pushed sources, and the end of their input."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from dask_elastic.runtime.client.client_steps import ClientSteps, run_async, run_blocking
from dask_elastic.runtime.client.senders import checked_due, senders_of
from dask_elastic.runtime.client.sent_rows import batches_of
from dask_elastic.runtime.protocol import job_calls
from dask_elastic.runtime.protocol.calls import B, Call
from dask_elastic.topology.duration import parse_duration
from dask_elastic.vocab.errors import TopologyError

if TYPE_CHECKING:
    from distributed import Client


class JobInput(ABC):
    """The half of `Job` that feeds pushed sources."""

    name: str
    client: Client

    @abstractmethod
    def _ask(self, call: Call[B], /) -> B:
        """Call the scheduler."""

    def send(
        self,
        rows: Any,
        source: str | None = None,
        *,
        due: float | None = None,
        wait: bool = False,
        timeout: float | str | None = None,
    ) -> None:
        """Send rows to a `sources.Push`; blocks while the source has no room.

        The rows go straight to the worker of the source. The method returns when they have left; use `wait`, or
        `flush`, to wait until the source has them. `end_of_input`, `drain` and `Client.close` flush first.

        In a job with checkpoints, unless the source has ``replay="at-most-once"``, the source has rows when they are on
        storage, from which no restart loses them. While the job restarts, the method waits, and then sends again what
        the source had not acknowledged.

        Parameters
        ----------
        rows : table
            A pyarrow RecordBatch or Table, a dict of columns, a pandas DataFrame (named levels of its index are
            columns) or Polars DataFrame, or another object with Arrow's PyCapsule interface. Columns may be in another
            order; they are cast to the types of the source if that changes no value: a large string to a string, an
            integer to a wider or, if it fits, a narrower one. One client's rows stay in the order of its calls.
        source : str, optional
            Name of the source; may be left out if the topology has only one `sources.Push`.
        due : float, optional
            When the rows were due, in seconds since the epoch: latency counts from then. By default it counts from
            their arrival at the worker. A time that is still to come counts as the time of arrival.
        wait : bool
            Whether to wait until the source has these rows and all that were sent before.
        timeout : float or str, optional
            Seconds to wait at most for room, and for the source if `wait` is set, or a duration such as ``"30s"``;
            without it there is no limit. A scheduler or worker that has to be asked has some seconds for its answer.

        Raises
        ------
        TypeError
            If `rows` is no table, or `due` is no number.
        ValueError
            If the columns of `rows` differ in length, `due` is no time in seconds since the epoch, or `timeout` is no
            duration.
        SchemaMismatch
            If the rows do not have the columns of the source, or a value cannot be cast. None of them is sent, and the
            job goes on.
        BatchTooLarge
            If a row is too large for the worker of the source: it has more than a quarter of the worker's memory, or
            than ``elastic.max-frame``. Nothing is sent.
        UnknownOperator
            If the job has no `sources.Push`, or several and `source` is left out.
        TimeoutError
            If the source has no room within `timeout`; the message says how many of the rows were sent.
        SourceError
            If the source has ended; the message says how many rows, sent before, it has not taken.
        NodeLost
            If the worker was lost, in a job without checkpoints; rows sent before may be lost with it.
        JobEnded
            If the job has finished or was stopped. If it failed, the error that it failed with is raised.

        Notes
        -----
        What happens to rows after the method has returned is raised by the next `send` or `flush` of the same client.
        A client that cannot connect to the workers, or has ``direct_to_workers=False``, sends through the scheduler,
        and waits for the source in each call.
        """
        if self.client.asynchronous:
            raise TypeError("this client is asynchronous, and send blocks: use `await job.asend(...)`")
        run_blocking(self.client, self._sending(rows, source, due, wait, timeout))

    async def asend(
        self,
        rows: Any,
        source: str | None = None,
        *,
        due: float | None = None,
        wait: bool = False,
        timeout: float | str | None = None,
    ) -> None:
        """Send rows as `send` does, in a coroutine: it awaits where `send` blocks.

        It runs on any event loop, also on that of a client with ``asynchronous=True``. Parameters and errors are those
        of `send`.

        Parameters
        ----------
        rows : table
            Rows with the columns of the source.
        source : str, optional
            Name of the source.
        due : float, optional
            When the rows were due, in seconds since the epoch.
        wait : bool
            Whether to wait until the source has these rows and all that were sent before.
        timeout : float or str, optional
            Seconds to wait at most, or a duration.

        Raises
        ------
        Exception
            As `send`.
        """
        await run_async(self.client, self._sending(rows, source, due, wait, timeout))

    def _sending(
        self,
        rows: Any,
        source: str | None,
        due: float | None,
        wait: bool,
        timeout: float | str | None,
    ) -> ClientSteps:
        batches, due = batches_of(rows), checked_due(due)
        return senders_of(self.client).send(self.name, source or None, batches, due, wait, seconds_of(timeout))

    def flush(self, timeout: float | str | None = None) -> None:
        """Wait until the job's sources have all rows that this client has sent.

        Parameters
        ----------
        timeout : float or str, optional
            Seconds, or a duration such as ``"30s"``; without it there is no limit.

        Raises
        ------
        ValueError
            If `timeout` is no duration.
        TimeoutError
            If the sources have not taken the rows within `timeout`; they are still on the way.
        ElasticError
            If rows were not, or may not have been, taken; see `send`.
        """
        run_blocking(self.client, senders_of(self.client).flush(self.name, seconds_of(timeout)))

    def end_of_input(self, source: str | None = None) -> None:
        """End the input of a `sources.Push`, behind the rows that this client has sent, so that the job can finish.

        Parameters
        ----------
        source : str, optional
            Name of the source; may be left out if the topology has only one `sources.Push`.

        Raises
        ------
        JobEnded
            If the job, which takes checkpoints, was stopped before the source had ended.
        ElasticError
            If rows sent before were not taken; see `send`.
        """
        self.flush()
        self._ask(job_calls.CloseSource(self.name, source or None, 0))


def seconds_of(timeout: float | str | None) -> float | None:
    """Return a timeout in seconds; None for no limit.

    Raises
    ------
    ValueError
        When it is not a duration, or below 0.
    """
    if timeout is None:
        return None
    seconds = _parsed(timeout, "timeout")
    if not seconds >= 0:
        raise ValueError(f"timeout is {timeout!r}; give seconds from 0 on, a duration such as '30s', or None to wait")
    return seconds


def seconds_between(every: float | str) -> float:
    """Return the time between two updates in seconds.

    Raises
    ------
    ValueError
        When it is not a duration above 0.
    """
    seconds = _parsed(every, "every")
    if not seconds > 0:
        raise ValueError(f"every is {every!r}; give seconds above 0, or a duration such as '500ms'")
    return seconds


def _parsed(duration: float | str, name: str) -> float:
    try:
        return parse_duration(duration, name)
    except TopologyError as error:
        raise ValueError(str(error)) from None
