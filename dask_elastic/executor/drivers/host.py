"""What a driver requires of its host: threads and channels of a Dask worker, or fibers of the simulator."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from dask_elastic.executor.drivers.steps import Steps
from dask_elastic.executor.limits import Haste
from dask_elastic.executor.processor import Processor
from dask_elastic.vocab.barrier import Barrier
from dask_elastic.vocab.batch import Batch, Delivery
from dask_elastic.vocab.identity import ExecutorId
from dask_elastic.vocab.messages import ToHome, ToRemote
from dask_elastic.vocab.watermark import Watermark


class Bell(Protocol):
    """Wakes the one thread that waits for it; a ring before the wait is not lost."""

    def ring(self) -> None:
        """Wake the waiting thread, or the next one that waits."""
        ...

    def wait(self) -> Any:
        """Return after the next ring."""
        ...


def ring(bell: Bell | None) -> Steps[None]:
    """Wake the thread that waits for the bell of a task; one that has ended has none."""
    if bell is not None:
        yield bell.ring


class ControlLock(Protocol):
    """A reentrant lock that is held while events are handled and their instructions carried out."""

    def acquire(self) -> Any:
        """Wait for the lock; the holder may acquire it again."""
        ...

    def release(self) -> None:
        """Release it once."""
        ...


class TaskHost(Protocol):
    """What runs the tasks of a driver.

    Drivers yield methods that return `Any` as acts: these block a thread, or return steps of a fiber in the simulator.
    """

    @property
    def ended(self) -> bool:
        """Whether the job has ended: tasks stop, even if work is queued."""
        ...

    def now(self) -> float:
        """Return the time, seconds since the epoch."""
        ...

    def bell(self) -> Bell:
        """Make a bell."""
        ...

    def start(self, name: str, steps: Steps[None]) -> None:
        """Run steps in a thread of their own; an error in them ends the job."""
        ...

    def processor(self, task: int) -> AbstractContextManager[Processor]:
        """Return the logic of a task; it is closed when the task ends."""
        ...

    def process(self, processor: Processor, batch: Batch) -> Any:
        """Process a batch; returns its outputs, a list of `Delivery`, and the busy seconds."""
        ...

    def leave_run(self, steps: Steps[None]) -> bool:
        """Leave brief work to a thread that may wait for its turn; returns False if the caller is to see to it."""
        ...

    def haste(self) -> Haste:
        """Return how long the calling thread may run an idle task."""
        ...


class ExecutorHost(TaskHost, Protocol):
    """What carries out the effects of an executor's driver at its home."""

    def lock(self) -> ControlLock:
        """Make the lock that serialises events and their instructions."""
        ...

    def rest(self, seconds: float) -> Any:
        """Let other threads go on for some time."""
        ...

    def send(self, node: int, message: ToRemote) -> Any:
        """Send a message to a remote task; returns False if there is no connection to its node.

        A message for which `Links.stamp` returns None is dropped, and counts as sent.
        """
        ...

    def defer(self, steps: Steps[None]) -> bool:
        """Carry out an inline run in the calling thread, soon; returns False if the caller is to do so at once."""
        ...

    def leave(self, steps: Steps[None]) -> bool:
        """Leave steps to another thread that brings rows at once; returns False if the caller is to carry them out."""
        ...

    def deliver(self, deliveries: Iterable[Delivery]) -> Any:
        """Deliver outputs to the next receivers; waits while their credit is used up."""
        ...

    def deliver_now(self, deliveries: Sequence[Delivery]) -> Any:
        """Deliver outputs in order as long as there is credit; returns the others as a list."""
        ...

    def release(self, origin: ExecutorId, nbytes: int, wanted_more: bool = False, is_part: bool = False) -> None:
        """Return credit to an upstream instance; see `instructions.Release`."""
        ...

    def emit_watermark(self, watermark: Watermark) -> Any:
        """Send a watermark to the next receivers, behind the outputs that were delivered before."""
        ...

    def cut(self, checkpoint: int) -> Any:
        """Copy the state of the primary copy for a checkpoint; returns when tasks may change it again."""
        ...

    def emit_barrier(self, barrier: Barrier) -> Any:
        """Send a barrier to the next receivers, behind the outputs that were delivered before."""
        ...

    def finished(self) -> Any:
        """Tell the next receivers that the executor has delivered its last output."""
        ...

    def flushed(self, token: int) -> None:
        """Note that the flush request `token` is complete: the primary copy is up to date."""
        ...


class RemoteHost(TaskHost, Protocol):
    """What carries out the effects of the driver of remote tasks."""

    def send(self, messages: Sequence[ToHome]) -> Any:
        """Send messages to the home, in order; returns False if there is no connection to it."""
        ...
