"""The stores of one job on a worker: which of them are on disk, and which move there when memory is short."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from pathlib import Path

import psutil  # type: ignore[import-untyped]

from dask_elastic.runtime.protocol.job_spec import JobOptions
from dask_elastic.runtime.worker.memory import HINT, Memory
from dask_elastic.state.disk import DiskStorage, UnnamedFiles
from dask_elastic.state.disk.unnamed_files import RESIDENT_BYTES
from dask_elastic.state.fused.component_store import ComponentStore
from dask_elastic.state.store import KeyedStore
from dask_elastic.topology.operators import Compute
from dask_elastic.vocab.errors import StateMemoryExceeded
from dask_elastic.vocab.identity import ExecutorId

logger = logging.getLogger("dask_elastic.node")

LEAST_RESIDENT = 32 * 2**20
"""Bytes of files that may be mapped at a time, however little memory the worker has."""


class StateStores:
    """The stores of a job's executors and remote tasks on this worker.

    Parameters
    ----------
    files : UnnamedFiles
        Makes the worker's files.
    options : JobOptions
        Where operators keep their state.
    memory : Memory
        The worker's memory.
    """

    def __init__(self, files: UnnamedFiles, options: JobOptions, memory: Memory):
        self._storage = DiskStorage(files)
        self._folder = files.folder
        self._options = options
        self._memory = memory
        self._stores: dict[ExecutorId, KeyedStore] = {}
        self._expected: dict[ExecutorId, ComponentStore] = {}
        self._relieving = False
        self._relieved = True

    def add(self, executor: ExecutorId, computes: Iterable[Compute], store: ComponentStore) -> None:
        """Take the store of each compute, without state yet; it replaces that of earlier remote tasks.

        Parameters
        ----------
        executor : ExecutorId
            The executor.
        computes : iterable of Compute
            What its tasks compute, the first operator first.
        store : ComponentStore
            Its primary copy, or the state of its remote tasks here.

        Raises
        ------
        StateDiskError
            If a file cannot be made.
        """
        for number, operator in enumerate(computes):
            own = store.behind(operator.name) if number else store
            identity = ExecutorId(operator.name, executor.index)
            self._place(operator, own)
            self._stores[identity] = own

    def place(self, computes: Iterable[Compute], store: ComponentStore) -> None:
        """Put the state of computes in memory or on disk, as their operators want it.

        Raises
        ------
        StateDiskError
            If a file cannot be made.
        """
        for number, operator in enumerate(computes):
            self._place(operator, store.behind(operator.name) if number else store)

    def _place(self, operator: Compute, store: KeyedStore) -> None:
        kept = operator.store or self._options.state_store
        store.reserve = self._memory.reserve
        store.address_space = self._memory.limit or psutil.virtual_memory().total
        if kept == "disk":
            store.move(self._storage)
        elif kept == "auto":
            store.overflow = self._overflow

    def expect(self, executor: ExecutorId, store: ComponentStore) -> None:
        """Take the state of an executor that may come here; remote tasks of it may have other state here meanwhile."""
        self._expected[executor] = store

    def forget(self, executor: ExecutorId) -> None:
        """Forget what `expect` has taken: the executor has come, or stays where it is."""
        self._expected.pop(executor, None)

    def remove(self, executor: ExecutorId, store: ComponentStore) -> None:
        """Forget the stores of remote tasks that have ended, or of an executor that has left; not those made since."""
        if self._stores.get(executor) is store:
            for operator in (executor.component, *store.fused):
                self._stores.pop(ExecutorId(operator, executor.index), None)

    @property
    def in_memory(self) -> bool:
        """Whether any store is in memory."""
        return bool(self._in_memory())

    def _in_memory(self) -> list[tuple[ExecutorId, KeyedStore]]:
        expected = [(e, part) for e, store in list(self._expected.items()) for part in (store, *store.fused.values())]
        return [(e, store) for e, store in [*list(self._stores.items()), *expected] if not store.storage.on_disk]

    def _movable(self) -> list[tuple[ExecutorId, KeyedStore]]:
        """Return the stores in memory that may be on disk, also of state that comes here."""
        return [(executor, store) for executor, store in self._in_memory() if store.overflow == self._overflow]

    def _overflow(self, nbytes: int) -> DiskStorage | None:
        """Return the storage to which a store moves before it grows by `nbytes`; called under the store's lock."""
        # Only what needs no lock of another store, whose thread may be here too.
        held = sum(store.allocated_bytes for _, store in self._in_memory())
        allowed = self._options.state_memory * self._memory.limit
        if not self._memory.limit or held + nbytes <= allowed:
            return None
        logger.warning(
            "state of %s MiB moves to files in %s: elastic.state-memory allows %s MiB in memory",
            f"{held >> 20:,}", self._folder, f"{int(allowed) >> 20:,}",
        )  # fmt: skip
        return self._storage

    def relieve_soon(self, start: Callable[[str, Callable[[], None]], None]) -> bool:
        """Have a thread move the largest store that may be on disk there: moving takes long, and waits for tasks.

        Parameters
        ----------
        start : callable
            Starts a thread of the job, given its name and what it runs.

        Returns
        -------
        bool
            Whether a store is being moved, or may be; False after a thread has found none with state.
        """
        if self._relieving:
            return True
        if not self._relieved:
            self._relieved = True
            return False
        if not self._movable():
            return False
        self._relieving = True
        try:
            start("relief", self._relieve)
        except RuntimeError as error:  # no thread can be started, as memory is short; the next look tries again
            self._relieving = False
            logger.warning("memory is short, and no state moves to files: %s", error)
            return False
        return True

    def _relieve(self) -> None:
        try:
            self._relieved = self.relieve()
        finally:
            self._relieving = False

    def relieve(self) -> bool:
        """Move the largest store that may be on disk there, because memory is short; returns whether one was moved."""
        # Remote tasks may end meanwhile, and `remove` forget their store.
        movable = [(store.state_bytes(), executor, store) for executor, store in self._movable()]
        nbytes, executor, store = max(movable, key=lambda found: found[0], default=(0, None, None))
        if store is None or not nbytes:
            return False
        logger.warning("memory is short: the state of %s moves to files in %s", executor, self._folder)
        store.move(self._storage)
        return True

    def nbytes(self) -> int:
        """Return the bytes of the state that is in memory here."""
        return sum(store.state_bytes() for _, store in self._in_memory())

    def exceeded(self, address: str, job: str, account: str) -> StateMemoryExceeded:
        """Return the error that ends the job when the worker has no more memory for it."""
        held = {str(executor): store.state_bytes() for executor, store in self._in_memory()}
        listed = ", ".join(f"{name}: {nbytes / 2**20:,.0f} MiB" for name, nbytes in held.items()) or "none in memory"
        has = f"worker {address} has no memory left: {account}"
        return StateMemoryExceeded(f"{has}; state of job {job!r} there: {listed}. {HINT}")


def state_files(folder: Path, memory: Memory) -> UnnamedFiles:
    """Return the files of a worker; those that are mapped are unmapped when memory is short.

    Parameters
    ----------
    folder : Path
        The worker's directory for temporary files.
    memory : Memory
        The worker's memory.

    Returns
    -------
    UnnamedFiles
        For all jobs on the worker.
    """
    most = max(LEAST_RESIDENT, min(RESIDENT_BYTES, memory.limit // 16 or RESIDENT_BYTES))
    files = UnnamedFiles(folder, _mapped_bytes, most)
    memory.unmap = files.unmap
    return files


def _mapped_bytes() -> int:
    """Return the bytes of files that are mapped into this process now; 0 where the system does not say."""
    return int(getattr(psutil.Process().memory_info(), "shared", 0))
