"""Detection of overloaded executors: their cores are busy and a backlog waits.

Under backpressure arrival rates are not informative: credits limit the senders to what the executor processes, so its
arrival rate is about its throughput, and its queue is full but bounded. An executor is overloaded if both hold at once:
nearly all of its cores are busy all the time, and more work waits than a short burst leaves. A full queue alone may be
caused by a slow downstream operator; busy cores alone may be just sufficient.
"""

from __future__ import annotations

from dask_elastic.control.settings import ControlSettings
from dask_elastic.vocab.snapshot import ExecutorSnapshot


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


def overloaded(executor: ExecutorSnapshot, settings: ControlSettings, before: bool = False) -> bool:
    """Return whether an executor's cores are busy and a backlog waits.

    Parameters
    ----------
    executor : ExecutorSnapshot
        The executor's measurements.
    settings : ControlSettings
        `saturation` and `backlog` are used.
    before : bool
        Whether it was overloaded in the previous snapshot; half of the backlog suffices then, since queues fluctuate.

    Returns
    -------
    bool
        Whether it is overloaded.
    """
    capacity = (executor.service_rate or 0.0) * executor.working_cores
    if capacity <= 0 or executor.throughput / capacity < settings.saturation:
        return False
    return executor.queue / capacity >= (settings.backlog / 2 if before else settings.backlog)
