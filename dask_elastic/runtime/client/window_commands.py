"""Commands of a job's handle about windows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Literal

from dask_elastic.runtime.protocol import job_calls
from dask_elastic.runtime.protocol.calls import B, Call
from dask_elastic.topology.duration import parse_duration


class WindowCommands(ABC):
    """The commands of `Job` about windows."""

    name: str

    @abstractmethod
    def _ask(self, call: Call[B], /) -> B:
        """Call the scheduler."""

    def share(
        self,
        operator: str,
        partials: Literal["slices", "instances", "auto"] = "auto",
        close_limit: float | str | None = None,
    ) -> None:
        """Choose while the job runs whether the windows of a compute share partial results.

        Parameters
        ----------
        operator : str
            A compute of aggregates over windows, with ``share="auto"``.
        partials : {"slices", "instances", "auto"}
            Rows are added to one partial result per slice, which windows share, or to one for each instance that
            contains them. With ``"auto"``, as at the start, the cost model chooses at the measured load, each time the
            longest window has passed.
        close_limit : float or str, optional
            Seconds, or a duration such as "50ms", that merging an instance of slices may take, if the cost model
            chooses: beyond that it has instances. No limit by default.

        Raises
        ------
        UnknownOperator
            If the job has no such compute.
        PlanningError
            If its windows cannot change.

        Notes
        -----
        All executors change at the same event time, one that they have not reached yet, and nothing waits for it:
        instances that are open then are merged from both kinds of partial results. `explain` shows what holds, since
        when and why, and what either choice costs, so that it says what a change would bring before it is made.

        Examples
        --------
        >>> import dask_elastic as de
        >>> import pyarrow as pa
        >>> from dask.distributed import Client
        >>> topology = de.Topology("letters")
        >>> schema = pa.schema({"letter": pa.string(), "at": pa.timestamp("s")})
        >>> windows = topology.source("letters", de.sources.Push(schema, event_time="at")).key_by("letter")
        >>> windows = windows.window(de.windows.hopping("1h", "10min"))
        >>> counted = windows.compute({"seen": de.aggregate.Count()}, name="hourly", executors=1)
        >>> with Client(n_workers=1, threads_per_worker=2, processes=False, dashboard_address=None) as client:
        ...     job = de.submit(topology, client)
        ...     job.share("hourly", "instances")
        ...     explained = job.explain("hourly")
        >>> [line.strip() for line in str(explained).splitlines() if "runs:" in line]
        ['while it runs: set to instances']
        """
        limit = None if close_limit is None else parse_duration(close_limit, "close_limit")
        self._ask(job_calls.ShareWindows(self.name, operator, partials, limit))
