"""Processing a batch in a thread that need not be the task's own."""

from __future__ import annotations

from collections.abc import Callable

from dask_elastic.executor.drivers.host import TaskHost
from dask_elastic.executor.processor import Processor
from dask_elastic.vocab.batch import Batch, Delivery
from dask_elastic.vocab.errors import StateError


def processed(
    host: TaskHost, processor: Processor, batch: Batch, has_ended: Callable[[], bool]
) -> tuple[list[Delivery], float]:
    """Process a batch; without outputs if the task has ended meanwhile, and with it its session.

    Parameters
    ----------
    host : TaskHost
        Runs the logic.
    processor : Processor
        The logic of the task.
    batch : Batch
        The batch.
    has_ended : callable
        Whether the task has ended: its own thread then closes the session, whichever thread uses it.

    Returns
    -------
    list of Delivery
        The outputs.
    float
        The busy seconds.
    """
    try:
        outputs, busy = host.process(processor, batch)
    except StateError:
        if not has_ended():
            raise
        return [], 0.0
    return outputs, busy
