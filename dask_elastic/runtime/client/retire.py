"""Retirement of workers while jobs run."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from dask_elastic.runtime.client.call import call_scheduler, checked_client
from dask_elastic.runtime.client.submission.installation import install
from dask_elastic.runtime.protocol.job_calls import Retire
from dask_elastic.topology.duration import parse_duration
from dask_elastic.vocab.errors import PlanningError

if TYPE_CHECKING:
    from distributed import Client


def retire(
    workers: str | Iterable[str],
    client: Client | None = None,
    timeout: float | str | None = None,
    *,
    close: bool = False,
) -> None:
    """Move executors and tasks off workers, and return when the workers can be closed without loss for running jobs.

    Executors that are at home there move one by one, see `Job.move_executor`, and get as many cores on other workers as
    are free. Jobs with a source or a sink there, or with executors that do not move, are restarted on other workers,
    from a checkpoint behind which they have read nothing: they pause for about a second, and no row is lost or shown
    twice. No job uses the retired workers again, also if none was ever submitted to the cluster.

    Parameters
    ----------
    workers : str or iterable of str
        Addresses of the workers.
    client : distributed.Client, optional
        A client of the cluster; the current client if left out.
    timeout : float or str, optional
        Seconds to wait at most, or a duration such as ``"30s"``; without it there is no limit.
    close : bool
        Whether to close the workers afterwards, with Dask's own `Client.retire_workers`.

    Raises
    ------
    PlanningError
        If a worker does not exist; if it hosts a source, a sink or an executor that does not move, and the job takes no
        checkpoints, or would lose rows in a restart; or if no other worker is left. Nothing is changed.
    TimeoutError
        If a job still has sources, sinks, executors or tasks on the workers after `timeout`. The workers get no new
        ones; call again to continue.
    MoveRefused
        If an executor could not be moved several times, as one that has processed all of its input. The workers get no
        new tasks.
    CheckpointError
        If checkpoints from which a job was to restart were given up several times. It goes on where it is.

    Examples
    --------
    >>> import dask_elastic as de
    >>> import pyarrow as pa
    >>> from dask.distributed import Client
    >>> topology = de.Topology("letters")
    >>> topology.source("letters", de.sources.Arrow(pa.table({"letter": ["a"]}))).sink(de.sinks.Collect(), name="out")
    >>> with Client(n_workers=2, processes=False, dashboard_address=None) as client:
    ...     job = de.submit(topology, client)
    ...     job.wait(progress=False)
    ...     first, second = client.scheduler_info()["workers"]
    ...     retire(second, client, timeout="30s", close=True)
    ...     list(client.scheduler_info()["workers"]) == [first]
    True
    """
    addresses = _addresses(workers)
    client = checked_client(client)
    seconds = None if timeout is None else parse_duration(timeout, "timeout")
    install(client)
    call_scheduler(client, Retire(tuple(addresses), seconds))
    if close:
        client.retire_workers(addresses, close_workers=True)


def _addresses(workers: Any) -> list[str]:
    given = [workers] if isinstance(workers, str) or not isinstance(workers, Iterable) else list(workers)
    if not given or not all(isinstance(one, str) for one in given):
        raise PlanningError(f"workers={workers!r}: give the address of a worker, as 'tcp://10.0.0.2:40001', or several")
    return given
