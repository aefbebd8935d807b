"""What the handlers, the staging server and `NodeFailures` need of their node."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol, TypeVar

from dask_elastic.runtime.protocol.calls import B, Call
from dask_elastic.runtime.protocol.codec import Payload
from dask_elastic.runtime.protocol.job_spec import JobSpec
from dask_elastic.runtime.protocol.reports import PartReport
from dask_elastic.runtime.transport.channels import Channels
from dask_elastic.runtime.transport.peer import Peer
from dask_elastic.runtime.worker.job_part import JobPart
from dask_elastic.runtime.worker.memory import Memory
from dask_elastic.runtime.worker.task_ends import TaskEnds

T = TypeVar("T")


class HostingNode(Protocol):
    """A node that hosts parts of jobs; implemented by `NodeRuntime`.

    Attributes
    ----------
    worker : distributed.Worker
        The Dask worker.
    job_parts : dict of str to JobPart
        The parts of jobs, by the jobs' names; parts that have ended stay until `forget`.
    memory : Memory
        The watch over the worker's memory.
    channels : Channels
        The connections to the other nodes.
    task_ends : TaskEnds
        Notes the ends of tasks of executors at home there.
    """

    worker: Any
    job_parts: dict[str, JobPart]
    memory: Memory
    channels: Channels
    task_ends: TaskEnds

    @property
    def address(self) -> str:
        """The address under which the other nodes know this one."""
        ...

    async def check_code(self, job: str, components: bytes | Payload) -> None:
        """Load the components of a job; raises `SubmitError` if this is not possible."""
        ...

    async def prepare(self, spec: JobSpec, components: bytes | Payload) -> None:
        """Build a job's part, and connect to the job's other nodes."""
        ...

    async def members(self, job: str, change: int, nodes: Sequence[str], guests: Sequence[int]) -> None:
        """Take the nodes that the scheduler announced for a job."""
        ...

    def refuse(self, job: str, generation: int, incarnation: int | None = None) -> None:
        """Refuse to prepare a generation of a job from now on, or its incarnations up to one."""
        ...

    async def forget(self, job: str) -> list[str]:
        """Stop a job's part and drop its state."""
        ...

    async def call_scheduler(self, call: Call[B]) -> B:
        """Call the scheduler; raises the error that it answers with."""
        ...

    async def in_thread(self, function: Callable[..., T], *arguments: Any) -> T:
        """Run something that may block away from the event loop."""
        ...

    async def in_waiting_thread(self, function: Callable[..., T], *arguments: Any) -> T:
        """Run something that may wait for a job away from the event loop."""
        ...

    async def in_reading_thread(self, function: Callable[..., T], *arguments: Any) -> T:
        """Run something that reads the state of a job away from the event loop."""
        ...

    async def report_on(self, job_part: JobPart) -> PartReport:
        """Return a report about a job's part."""
        ...

    def spawn(self, work: Coroutine[Any, Any, Any], what: str) -> asyncio.Task[Any]:
        """Run a coroutine on the event loop until the node is closed; an error is logged, with what it does."""
        ...

    def peer(self, address: str) -> Peer:
        """Return the connection to another node; raises `NodeLost` if there is none."""
        ...

    def report_soon(self) -> None:
        """Report to the scheduler without waiting for the interval; called from any thread."""
        ...
