"""Retiring workers while jobs run."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from dask.utils import parse_timedelta

from dask_elastic.runtime.client.call import call_scheduler, default_client
from dask_elastic.runtime.protocol.job_calls import Retire

if TYPE_CHECKING:
    from distributed import Client


def retire(
    workers: str | Iterable[str],
    client: Client | None = None,
    timeout: float | str | None = None,
    *,
    close: bool = False,
) -> None:
    """Take all cores away from workers, and return when they can be closed without harm to a running job.

    Executors get as many cores elsewhere as are free. No job uses the workers from then on.

    Parameters
    ----------
    workers : str or iterable of str
        Addresses of the workers.
    client : distributed.Client, optional
        The cluster; the current client if left out.
    timeout : float or str, optional
        Seconds to wait at most, or a duration such as ``"30s"``; without it there is no limit.
    close : bool
        Whether to also close the workers then, with Dask's `Client.retire_workers`.

    Raises
    ------
    PlanningError
        If a worker is not in the cluster, or it is the home of executors, sources or sinks of a running job, which do
        not change their home yet. Nothing is changed then.
    TimeoutError
        If tasks of some job are still there after `timeout`. The workers get no new ones; call again to go on
        waiting.
    """
    addresses = [workers] if isinstance(workers, str) else list(workers)
    client = client or default_client()
    seconds = None if timeout is None else float(parse_timedelta(timeout, default="s"))
    call_scheduler(client, Retire(tuple(addresses), seconds))
    if close:
        client.retire_workers(addresses, close_workers=True)
