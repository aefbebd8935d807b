"""Hosts the driver of an executor's remote tasks on threads of a node that is not its home."""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, closing

from dask_elastic.executor.drivers.remote_driver import RemoteDriver
from dask_elastic.executor.drivers.steps import Steps, run
from dask_elastic.executor.limits import Haste
from dask_elastic.executor.processor import Processor
from dask_elastic.executor.remote import RemotePart
from dask_elastic.meters import BriefWork
from dask_elastic.runtime.transport.doorbell import Doorbell
from dask_elastic.runtime.transport.fence import Fence
from dask_elastic.runtime.worker.exchange import Exchange
from dask_elastic.runtime.worker.job_threads import JobThreads
from dask_elastic.runtime.worker.turns import TURNS
from dask_elastic.vocab import messages as m
from dask_elastic.vocab.batch import Batch, Delivery
from dask_elastic.vocab.errors import NodeLost

logger = logging.getLogger("dask_elastic.node")


class RemoteThreads:
    """The remote tasks of one executor on this node: their driver, and the threads that it asks for.

    Parameters
    ----------
    part : RemotePart
        Queues and state of the tasks.
    make_processor : callable
        ``make_processor(task, store, sinks)`` returns the logic of a task.
    threads : JobThreads
        Runs the tasks.
    exchange : Exchange
        Carries messages to the home.
    home : int
        The node of the executor's home.
    sinks : int
        The node whose sinks get the executor's outputs.
    """

    def __init__(
        self,
        part: RemotePart,
        make_processor: Callable[..., Processor],
        threads: JobThreads,
        exchange: Exchange,
        home: int,
        sinks: int,
    ):
        self.part = part
        self.home = home
        self._sinks = sinks
        self.threads = threads
        self.exchange = exchange
        self._make_processor = make_processor
        self._brief_work = BriefWork()
        self._fence = Fence(lambda _: part.stamp())
        self.driver = RemoteDriver(part, self)

    def receive(self, message: m.ToRemote) -> None:
        """Take a message of the home; called by the thread that reads the channel."""
        with TURNS.without_waiting():
            run(self.driver.receive(message))

    def flush_due(self) -> None:
        """Queue a flush request at every task that has changed state since its last flush."""
        self.driver.flush_due()

    def close(self) -> None:
        """End the tasks."""
        self.driver.close()

    def abort(self) -> None:
        """Wake every thread, so that it sees that the job has ended."""
        self.driver.wake_all()

    # what the driver asks for (RemoteHost)

    @property
    def ended(self) -> bool:
        """Whether the job has ended."""
        return self.threads.ended

    now = staticmethod(time.time)

    def bell(self) -> Doorbell:
        """Make a bell."""
        return Doorbell()

    def start(self, name: str, steps: Steps[None]) -> None:
        """Run steps in a thread of their own."""
        self.threads.start(f"{self.part.identity}-{name}", functools.partial(run, steps))

    def processor(self, task: int) -> AbstractContextManager[Processor]:
        """Return the logic of a task."""
        return closing(self._make_processor(task, self.part.store, self._sinks))

    def process(self, processor: Processor, batch: Batch) -> tuple[list[Delivery], float]:
        """Process a batch."""
        return TURNS.run(self._brief_work, batch.rows.num_rows, lambda: processor.process(batch))

    def leave_run(self, steps: Steps[None]) -> bool:
        """Leave brief work to the thread that runs idle tasks, unless the logic may wait for something."""
        return self._brief_work.is_brief and self.threads.leave_run(functools.partial(run, steps))

    def haste(self) -> Haste:
        """Return how long the calling thread may run an idle task."""
        return Haste.RUNS if self.threads.runs.is_current and self._brief_work.is_brief else Haste.READS

    def send(self, messages: Sequence[m.ToHome]) -> bool:
        """Send messages to the home."""
        try:
            self.exchange.send_messages(self.home, self.part.identity, messages, self._fence)
        except NodeLost as error:
            logger.info("%s: %s", self.part.identity, error)
            return False
        return True
