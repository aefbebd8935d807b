"""Calls by which a cluster that grows and shrinks with its jobs asks the scheduler what they need."""

from __future__ import annotations

from dataclasses import dataclass

from dask_elastic.runtime.protocol.calls import Call

GROWS = "dask_elastic_grows"
"""Key in the metadata of a scheduler whose cluster grows with its jobs: the value has the most `workers`, or None."""


@dataclass(frozen=True)
class ClusterNeed:
    """What the running jobs and Dask's own tasks need.

    Parameters
    ----------
    slots : float
        Thread slots; 0 without jobs.
    for_tasks : int
        Workers that Dask's own tasks need.
    jobs : int
        Jobs that run or are being submitted, which may wait for a first worker.
    per_worker : int
        Thread slots of a worker, 0 if there is none.
    workers : tuple of (str, str)
        Address and name of each worker that may leave, first those that can be emptied with the least effort; without
        those that run tasks of Dask.
    restarting : tuple of str
        The addresses of those that jobs leave by a restart: one is enough for all that leave together.
    retired : tuple of (str, str)
        Address and name of each worker that gets no more work of jobs.
    """

    slots: float
    for_tasks: int
    jobs: int
    per_worker: int
    workers: tuple[tuple[str, str], ...]
    restarting: tuple[str, ...] = ()
    retired: tuple[tuple[str, str], ...] = ()


class NeedOfCluster(Call[ClusterNeed]):
    """Return what the running jobs and Dask's own tasks need.

    Parameters
    ----------
    workers : int or None
        The most workers that the cluster may have; None without a bound. A job may be submitted while it has none.
    target_duration : float
        Seconds within which Dask's own tasks are to be done.
    """

    workers: int | None
    target_duration: float


class Keep(Call[None]):
    """Let workers stay that were asked to leave.

    Parameters
    ----------
    workers : tuple of str
        Their addresses.
    """

    workers: tuple[str, ...]
