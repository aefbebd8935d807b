"""The memory of a worker: backpressure while it is short, and the end of a job before Dask kills the worker."""

from __future__ import annotations

import ctypes
import ctypes.util
import logging
import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import psutil  # type: ignore[import-untyped]
import pyarrow as pa

from dask_elastic.runtime.config.worker_options import WorkerOptions
from dask_elastic.vocab.errors import StateMemoryExceeded

if TYPE_CHECKING:
    from distributed import Worker

logger = logging.getLogger("dask_elastic.node")

PATIENCE = 5.0
"""Seconds for which a worker that is short of memory takes no rows; by then its backlog is processed."""

LEAST_ROOM = 128 * 2**20
"""Bytes that have to be free below the limit for rows to be taken again: queues, and state that grows."""

RESERVE_SECONDS = 2.0
"""Seconds for which growing state waits for free memory."""

POLL = 0.1


class Memory:
    """Watches the memory of this process.

    Parameters
    ----------
    limit : int
        Bytes that the worker may have; 0 for no limit.
    options : WorkerOptions
        At which fractions of the limit to hold back credit, and to end a job.
    resident : callable, optional
        Returns the resident bytes of the process.
    clock : callable, optional
        Returns the time, seconds.

    Attributes
    ----------
    tight : bool
        Whether memory is short. Credit is then held back, so that senders stop when their windows are full, back to the
        sources.
    unmap : callable
        Unmaps files, whose pages the process does not need in its memory.

    Notes
    -----
    If memory stays short although no rows are taken, it is filled by state, which does not shrink. Rows are then taken
    again, up to halfway from what the state has to the limit, and so on while there is room for rows below the limit.
    State grows in steps, and the memory for each must be free before: Dask's nanny checks the process ten times
    a second and kills it at 95 percent.
    """

    def __init__(
        self,
        limit: int,
        options: WorkerOptions,
        resident: Callable[[], int] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ):
        self.limit = limit
        self.options = options
        self.tight = False
        self._resident = resident or _resident()
        self._clock = clock
        self._since = 0.0
        self._pressure = self._least_pressure
        self.unmap: Callable[[], None] = lambda: None
        self._free = _release()
        self._waiting = threading.Event()

    @classmethod
    def of(cls, worker: Worker, options: WorkerOptions) -> Memory:
        """Return the watch over a Dask worker, with the worker's memory limit."""
        manager: Any = getattr(worker, "memory_manager", None)
        return cls(int(getattr(manager, "memory_limit", 0) or 0), options)

    def look(self, has_state: bool = True) -> bool:
        """Check the process; returns whether a job must end.

        That is the case when memory is above the fraction `memory_limit`, or when state has left less than `LEAST_ROOM`
        below it, although no rows were taken for `PATIENCE` seconds. `has_state` is false if all state is on disk.
        """
        if not self.limit:
            return False
        resident = self._resident()
        if resident > self._pressure:
            self._release()
            resident = self._resident()
        if resident <= self._least_pressure:
            self._pressure = self._least_pressure
        elif self.tight and self._clock() - self._since > PATIENCE:
            if has_state and self._most - resident < LEAST_ROOM:
                return True
            self._pressure = (resident + self._most) / 2
        tight = resident > self._pressure
        if tight and not self.tight:
            self._since = self._clock()
            logger.warning("memory: %s; this worker takes no more rows for now", self.account(resident))
        elif self.tight and not tight:
            logger.warning("memory: %s; this worker takes rows again", self.account(resident))
        self.tight = tight
        return resident > self._most

    def reserve(self, nbytes: int) -> None:
        """Wait for free memory before state grows by `nbytes`; less than 1 MiB is not waited for.

        Raises
        ------
        StateMemoryExceeded
            If it is not free within `RESERVE_SECONDS`.
        """
        if not self.limit or nbytes < 2**20:
            return
        deadline = self._clock() + RESERVE_SECONDS
        while self._resident() + nbytes > self._most:
            # Rows in flight still arrive meanwhile: only `look` makes senders stop.
            self._release()
            if self._clock() > deadline:
                raise StateMemoryExceeded(
                    f"state has to grow by {_mebibytes(nbytes)}, which is not free: "
                    f"{self.account(self._resident())}. {HINT}"
                )
            self._waiting.wait(POLL)

    def has_room(self, nbytes: int) -> bool:
        """Return whether so many bytes more would stay below the fraction at which a job ends."""
        return not self.limit or self._resident() + nbytes <= self._most

    def _release(self) -> None:
        # Mapped files count as memory of the process too.
        self.unmap()
        self._free()

    @property
    def _least_pressure(self) -> float:
        """Bytes up to which rows are never held back."""
        return self.options.memory_pressure * self.limit

    @property
    def _most(self) -> float:
        """Bytes above which a job must end."""
        return self.options.memory_limit * self.limit

    def account(self, resident: int | None = None) -> str:
        """Return a phrase with the memory that the process has, and its limit."""
        has = self._resident() if resident is None else resident
        return f"the process has {_mebibytes(has)} of {_mebibytes(self.limit)}"


HINT = (
    "Keep the state on disk (state_store='disk' or 'auto'), give workers more memory (memory_limit), spread the state "
    "over more workers (executors=), or keep fewer keys. "
    "elastic.memory-limit is the fraction of a worker's memory above which a job ends."
)


def _mebibytes(nbytes: float) -> str:
    return f"{nbytes / 2**20:,.0f} MiB"


def _resident() -> Callable[[], int]:
    process = psutil.Process()
    return lambda: int(process.memory_info().rss)


def _release() -> Callable[[], None]:
    """Return a function that returns freed memory to the system, which allocators otherwise keep."""
    name = ctypes.util.find_library("c") if sys.platform == "linux" else None
    trim = None if name is None else getattr(ctypes.CDLL(name), "malloc_trim", None)

    def release() -> None:
        pa.default_memory_pool().release_unused()
        if trim is not None:
            trim(0)

    return release
