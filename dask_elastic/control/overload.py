"""When an executor has more to do than it can: its cores are busy, and work waits.

Under back-pressure arrivals say little. Credits hold the senders to what the executor achieves, so its arrival rate is
about its throughput, and its queue is full but bounded. What tells an overload is that both hold at once: (nearly) all
cores are busy all the time, and more work waits than a short burst leaves behind. A full queue alone may be the fault
of whoever takes the outputs; busy cores alone may be just enough.
"""

from __future__ import annotations

from dask_elastic.control.settings import ControlSettings
from dask_elastic.vocab.snapshot import ExecutorSnapshot


def utilisation(executor: ExecutorSnapshot) -> float:
    """Return the part of the time that the cores of an executor are busy; 0 while its service rate is not known.

    Examples
    --------
    >>> from dask_elastic.vocab.identity import ExecutorId
    >>> utilisation(ExecutorSnapshot(ExecutorId("count", 0), 0, {0: 2}, 900.0, 600.0, throughput=900.0))
    0.75
    """
    capacity = (executor.service_rate or 0.0) * executor.total_cores
    return executor.throughput / capacity if capacity > 0 else 0.0


def waiting_seconds(executor: ExecutorSnapshot) -> float:
    """Return how long all cores of an executor would work on what waits; 0 while its service rate is not known."""
    capacity = (executor.service_rate or 0.0) * executor.total_cores
    return executor.queue / capacity if capacity > 0 else 0.0


def overloaded(executor: ExecutorSnapshot, settings: ControlSettings, before: bool = False) -> bool:
    """Tell whether an executor's cores are busy and work waits.

    Parameters
    ----------
    executor : ExecutorSnapshot
        What is measured.
    settings : ControlSettings
        `saturation` and `backlog`.
    before : bool
        Whether it was overloaded a moment ago: then half of the backlog will do, as the queue goes up and down.
    """
    backlog = settings.backlog / 2 if before else settings.backlog
    return utilisation(executor) >= settings.saturation and waiting_seconds(executor) >= backlog
