"""Detection of overloaded executors: their cores are busy and a backlog waits.

Under backpressure arrival rates are not informative: credits limit the senders to what the executor processes, so its
arrival rate is about its throughput, and its queue is full but bounded. An executor is overloaded if both hold at once:
nearly all of its cores are busy all the time, and more work waits than a short burst leaves. A full queue alone may be
caused by a slow downstream operator; busy cores alone may be just sufficient.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dask_elastic.control.settings import ControlSettings
from dask_elastic.vocab.snapshot import ExecutorSnapshot, JobSnapshot


def utilisation(executor: ExecutorSnapshot) -> float:
    """Return the fraction of time that an executor's cores are busy; 0 while its service rate is unknown.

    Parameters
    ----------
    executor : ExecutorSnapshot
        The executor's measurements.

    Returns
    -------
    float
        A fraction, slightly above 1 if measurements are noisy.

    Examples
    --------
    >>> from dask_elastic.vocab.identity import ExecutorId
    >>> utilisation(ExecutorSnapshot(ExecutorId("count", 0), 0, {0: 2}, 900.0, 600.0, throughput=900.0))
    0.75
    """
    capacity = (executor.service_rate or 0.0) * executor.working_cores
    return executor.throughput / capacity if capacity > 0 else 0.0


def backlog_seconds(executor: ExecutorSnapshot) -> float:
    """Return the time in which an executor's cores would process its queue; 0 while its service rate is unknown.

    Parameters
    ----------
    executor : ExecutorSnapshot
        The executor's measurements.

    Returns
    -------
    float
        Seconds.
    """
    capacity = (executor.service_rate or 0.0) * executor.working_cores
    return executor.queue / capacity if capacity > 0 else 0.0


def overloaded(job: JobSnapshot, settings: ControlSettings, before: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return whether the cores of each executor of a job are busy and a backlog waits.

    Parameters
    ----------
    job : JobSnapshot
        The job's measurements.
    settings : ControlSettings
        `saturation` and `backlog` are used.
    before : array of bool
        Whether each executor was overloaded in the previous snapshot; half of the backlog suffices then, since queues
        fluctuate.

    Returns
    -------
    array of bool
        Whether each executor is overloaded.
    """
    capacity = job.service_rates * job.working_cores
    waits = _per_capacity(job.queues, capacity) >= np.where(before, settings.backlog / 2, settings.backlog)
    return (capacity > 0) & (_per_capacity(job.throughputs, capacity) >= settings.saturation) & waits


def utilisations(job: JobSnapshot) -> NDArray[np.float64]:
    """Return `utilisation` of each executor of a job."""
    return _per_capacity(job.throughputs, job.service_rates * job.working_cores)


def backlogs(job: JobSnapshot) -> NDArray[np.float64]:
    """Return `backlog_seconds` of each executor of a job."""
    return _per_capacity(job.queues, job.service_rates * job.working_cores)


def _per_capacity(amounts: NDArray[np.float64], capacity: NDArray[np.float64]) -> NDArray[np.float64]:
    return amounts / np.where(capacity > 0, capacity, np.inf)
