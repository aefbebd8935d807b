"""CPU time of this process and of workers, as cores over a window of time."""

from __future__ import annotations

import time

from distributed import Client


class OwnCpu:
    """CPU time of this process since `begin`."""

    def __init__(self) -> None:
        self._begun: tuple[float, float] | None = None

    def begin(self) -> None:
        """Begin the window, unless it has begun."""
        if self._begun is None:
            self._begun = time.perf_counter(), time.process_time()

    def cores(self) -> float:
        """Return CPU seconds per second since `begin`."""
        assert self._begun is not None, "call begin first"
        wall, cpu = self._begun
        return (time.process_time() - cpu) / (time.perf_counter() - wall)


class ClusterCpu:
    """CPU time of all workers of a cluster, and of this process with its client and scheduler, since the start."""

    def __init__(self, client: Client):
        self._client = client
        self._own = OwnCpu()
        self._own.begin()
        self._begun, self._spent = time.perf_counter(), self._workers()

    def _workers(self) -> float:
        return float(sum(self._client.run(time.process_time).values()))

    def seconds(self) -> float:
        """Return the CPU seconds of the workers."""
        return self._workers() - self._spent

    def cores(self) -> float:
        """Return the CPU seconds per second of the workers."""
        return self.seconds() / (time.perf_counter() - self._begun)

    def own_cores(self) -> float:
        """Return the CPU seconds per second of this process."""
        return self._own.cores()
