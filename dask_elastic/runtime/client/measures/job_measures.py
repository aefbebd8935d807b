"""The measurements of a job: of executors, of computes that share tasks, of rows between operators, of user code."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from dask_elastic.runtime.client.data_frame import data_frame
from dask_elastic.runtime.client.event_time_view import instants
from dask_elastic.runtime.protocol.job_description import JobDescription
from dask_elastic.vocab.row_counts import RowCounts

if TYPE_CHECKING:
    import pandas as pd


class JobMeasures(ABC):
    """The part of `Job` that returns its newest measurements."""

    name: str

    @abstractmethod
    def _describe(self) -> JobDescription:
        """Return the scheduler's description of the job."""

    def metrics(self) -> pd.DataFrame:
        """Return the newest measurements, one row per executor.

        Returns
        -------
        pandas.DataFrame
            Columns: ``operator``, ``executor``, ``node`` (address of the home), ``cores``, ``arrival_rate`` (λ,
            tuples/s), ``service_rate`` (μ, tuples per busy second and core), ``queue`` (tuples), ``latency_p50`` and
            ``latency_p99`` (seconds from the scheduled emission at the source to the end of processing, over the
            last 10 s), ``state_bytes``, ``rows`` (processed since the job or its last restart began: those before are
            not counted, and those after the checkpoint are processed again), ``moves`` and ``moves_across`` (moves of
            shards, and those between nodes, since the executor is at this home; where key groups move between
            executors, those that have come); ``throughput`` (processed tuples/s), ``customer_rows``
            (mean tuples of a sub-batch when it reaches a task), ``sojourn`` (mean seconds from a tuple's arrival at the
            executor to the end of its processing, over the last 2 s), ``bytes_in`` and ``bytes_out`` (bytes/s),
            ``pending_bytes`` (sub-batches sent to remote tasks whose state changes have not been flushed home),
            ``recovered`` (how often the executor lost remote tasks and recovered), ``recovery_p50`` and
            ``recovery_p99`` (seconds from such a loss to the first row processed again), ``refused`` (stale and
            duplicate messages), ``bound`` (whether its threads hold the GIL, so that
            another core on the same worker does not help), ``event_time`` (the watermark: all older rows are processed,
            except late ones; in UTC without a time zone; missing if no source upstream has event time), ``busy`` (busy
            seconds per second of all its cores), ``backpressured`` (share of time in which its outputs wait for
            credit), ``state_on_disk`` (the part of ``state_bytes`` that is in files), and what became of the rows of
            windows: ``on_time``, ``corrected`` and ``late`` (pairs of a row and an instance that contains it: the
            instance was open, or closed but within its allowed lateness, or takes no rows any more), ``outside``
            (rows that no instance contains) and ``untimed`` (rows without a time). A join counts its rows likewise.
            They are counted since the job or its last restart began, and missing otherwise. ``open_windows`` are the
            partial results that wait for their window to close: one per key and instance, or per key and slice where
            instances share slices; of a join, the rows that wait.
        """
        described = self._describe()
        columns = [
            "operator", "executor", "node", "cores", "arrival_rate", "service_rate", "queue", "latency_p50",
            "latency_p99", "state_bytes", "rows", "moves", "moves_across", "throughput", "customer_rows", "sojourn",
            "bytes_in", "bytes_out", "pending_bytes", "recovered", "recovery_p50", "recovery_p99", "refused", "bound",
            "event_time", "busy", "backpressured", "state_on_disk", *RowCounts._fields, "open_windows",
        ]  # fmt: skip
        bound = set(described.control.bound)
        rows = [
            {
                **vars(part),
                **(dict.fromkeys(RowCounts._fields) if part.windows is None else part.windows._asdict()),
                "node": described.nodes[part.node],
                "bound": part.operator in bound,
            }
            for part in described.executors
        ]
        table = data_frame(rows, columns)
        table["event_time"] = instants(part.event_time for part in described.executors)
        return table.sort_values(["operator", "executor"], ignore_index=True)

    def stalled(self) -> pd.DataFrame:
        """Return the calls of user code that have not returned for longer than the option ``stall_after``.

        Returns
        -------
        pandas.DataFrame
            One row per thread, oldest call first. Columns: ``operator``, ``activity`` ("read", "process" or "write"),
            ``worker`` (its address), ``since`` (when the call began, in UTC without a time zone), ``thread``,
            ``frame`` (file, line and function of the innermost frame of user code). A source that waits that long for
            its next rows is listed, too.
        """
        described = self._describe()
        columns = ["operator", "activity", "worker", "since", "thread", "frame"]
        rows = [{**call._asdict(), "worker": described.nodes[call.node]} for call in described.stalled]
        table = data_frame(rows, columns)
        table["since"] = instants(int(call.since * 1e6) for call in described.stalled)
        return table

    def computes(self) -> pd.DataFrame:
        """Return the newest measurements of computes that share tasks, one row per compute and executor.

        Returns
        -------
        pandas.DataFrame
            Columns: ``operator``, ``component`` (the compute that gives the tasks their name), ``executor``,
            ``state_bytes``, ``seconds`` (processor time of its logic), ``on_time``, ``corrected``, ``late``,
            ``outside``, ``untimed`` and ``open_windows``, as of `metrics`, which has them for all computes of an
            executor together. ``seconds`` and rows are counted since the job or its last restart began.
        """
        columns = [
            "operator", "component", "executor", "state_bytes", "seconds", *RowCounts._fields, "open_windows"
        ]  # fmt: skip
        rows = [
            {
                **one._asdict(),
                **(dict.fromkeys(RowCounts._fields) if one.windows is None else one.windows._asdict()),
                "component": part.operator,
                "executor": part.executor,
            }
            for part in self._describe().executors
            for one in part.computes
        ]
        return data_frame(rows, columns).sort_values(["component", "executor"], kind="stable", ignore_index=True)

    def rates(self) -> dict[tuple[str, str], float]:
        """Return how many rows operators pass on, as `Topology.fusions` and `Topology.explain` take it.

        Returns
        -------
        dict of (str, str) to float
            Rows per second by producer and consumer, over the last seconds; zeros when nothing arrives.
        """
        return {(edge.producer, edge.consumer): edge.rate for edge in self._describe().edges}
