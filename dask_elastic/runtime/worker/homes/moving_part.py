"""What moves of homes need of a job's part on a node, and of the node."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from typing import TYPE_CHECKING, Protocol

from dask_elastic.runtime.protocol.calls import B, Call
from dask_elastic.runtime.transport.peer import Peer
from dask_elastic.runtime.worker.exchange import Exchange
from dask_elastic.runtime.worker.executor_threads import ExecutorThreads
from dask_elastic.runtime.worker.homes.executor_factory import ExecutorFactory
from dask_elastic.runtime.worker.job_threads import JobThreads
from dask_elastic.runtime.worker.members import Members
from dask_elastic.runtime.worker.remote_threads import RemoteThreads
from dask_elastic.runtime.worker.sources.source_thread import SourceThread
from dask_elastic.runtime.worker.stores.state_stores import StateStores
from dask_elastic.topology.component import Component
from dask_elastic.vocab.identity import ExecutorId

if TYPE_CHECKING:
    from dask_elastic.runtime.worker.part_checkpoints import PartCheckpoints


class MovingNode(Protocol):
    """The node; implemented by `NodeRuntime`."""

    def peer(self, address: str) -> Peer:
        """Return the connection to another node; raises `NodeLost` if there is none."""
        ...

    def call_worker(self, address: str, call: Call[B], /) -> Future[B]:
        """Begin to call another worker from a thread."""
        ...

    def report_soon(self) -> None:
        """Report to the scheduler without waiting for the interval; called from any thread."""
        ...


class MovingPart(Protocol):
    """The part; implemented by `JobPart`.

    Attributes
    ----------
    homes, remotes, sources : dict
        Its instances on the node, by id.
    """

    members: Members
    exchange: Exchange
    threads: JobThreads
    stores: StateStores
    checkpoints: PartCheckpoints | None
    factory: ExecutorFactory
    homes: dict[ExecutorId, ExecutorThreads]
    remotes: dict[ExecutorId, RemoteThreads]
    sources: dict[ExecutorId, SourceThread]

    @property
    def components(self) -> Mapping[str, Component]:
        """The topology's components."""
        ...

    def expect(self, identity: ExecutorId) -> None:
        """Note that the part is not complete before an executor that comes here has ended."""
        ...

    def discard(self, identity: ExecutorId) -> None:
        """Note that an executor has left, or does not come."""
        ...

    def add_home(self, home: ExecutorThreads) -> None:
        """Take an executor that has come, and let it fail over from the nodes that have left."""
        ...

    def end_remote(self, remote: RemoteThreads) -> None:
        """End the remote tasks here of an executor; others that have been started since go on."""
        ...

    def fail(self, error: BaseException) -> None:
        """End the job everywhere because of an error."""
        ...
