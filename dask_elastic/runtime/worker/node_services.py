"""What a job's part needs of the node that it runs on."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from dask_elastic.runtime.protocol.calls import B, Call
from dask_elastic.runtime.transport.peer import Peer
from dask_elastic.runtime.transport.queue_reader import QueueReader
from dask_elastic.runtime.worker.memory import Memory
from dask_elastic.runtime.worker.task_ends import TaskEnds
from dask_elastic.state.disk import UnnamedFiles

if TYPE_CHECKING:
    from distributed import Client


class NodeServices(Protocol):
    """Connections, memory and the way to the scheduler; implemented by `NodeRuntime`.

    Attributes
    ----------
    state_files : UnnamedFiles
        Makes the files of state that is on disk.
    """

    state_files: UnnamedFiles

    @property
    def address(self) -> str:
        """The address under which the other nodes know this one."""
        ...

    @property
    def memory(self) -> Memory:
        """The watch over the worker's memory."""
        ...

    @property
    def spill_directory(self) -> Path:
        """A new directory for what does not fit in memory."""
        ...

    def peer(self, address: str) -> Peer:
        """Return the connection to another node; raises `NodeLost` if there is none."""
        ...

    @property
    def task_ends(self) -> TaskEnds:
        """Notes the ends of tasks."""
        ...

    def ask(self, call: Call[B], /) -> B:
        """Call the scheduler from a thread; raises the error that it answers with."""
        ...

    def in_thread(self, function: Callable[..., Any], *arguments: Any) -> Awaitable[Any]:
        """Run something that may block away from the event loop."""
        ...

    def queue_reader(self, name: str, stopping: Callable[[], bool]) -> QueueReader:
        """Return a reader of an output queue of some job, for a thread."""
        ...

    def client(self) -> Client:
        """Connect a client to the cluster; called in a thread, which closes it."""
        ...

    def wake(self) -> None:
        """Run the upkeep and the reports of an idle job at once; called from any thread."""
        ...

    def call_worker(self, address: str, call: Call[B], /) -> Future[B]:
        """Begin to call another worker, from a thread."""
        ...

    def report_soon(self) -> None:
        """Report to the scheduler without waiting for the interval; called from any thread."""
        ...

    def job_part_ended(self, job: str) -> None:
        """Note that all instances of a job on this node have ended; called from any thread."""
        ...

    def job_failed(self, job: str, error: BaseException) -> None:
        """Note that a job failed on this node; called from any thread."""
        ...
