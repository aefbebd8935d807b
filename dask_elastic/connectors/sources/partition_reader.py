"""Computes the partitions of a Dask collection one after the other, on a cluster or in this thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from dask_elastic.connectors.sources.partition_graph import PartitionGraph
from dask_elastic.vocab.errors import SourceError

if TYPE_CHECKING:
    from distributed import Client, Future

POLL_SECONDS = 0.2
"""How often a reader that waits for a partition looks whether the job is stopping."""

AHEAD = 2
"""How many partitions are on the cluster at most: one that is read next, and one that is computed meanwhile."""


def computed_here(graph: PartitionGraph, numbers: Sequence[int]) -> Iterator[tuple[int, pa.Table]]:
    """Compute partitions in this thread, one when it is asked for.

    Parameters
    ----------
    graph : PartitionGraph
        The tasks.
    numbers : sequence of int
        The partitions to compute.

    Yields
    ------
    tuple of int and Table
        The number of a partition, and its rows.
    """
    import dask

    for number in numbers:
        key = graph.keys[number]
        yield number, dask.get(graph.needed([key]), key)


class PartitionReader:
    """Computes partitions on a cluster, each while the one before it is processed.

    Parameters
    ----------
    graph : PartitionGraph
        The tasks.
    client : distributed.Client
        Submits them; closed by the caller.
    stopping : callable
        Returns True when the reader is to stop.
    owner : str
        The source, for messages.
    """

    def __init__(self, graph: PartitionGraph, client: Client, stopping: Callable[[], bool], owner: str):
        self._graph = graph
        self._client = client
        self._stopping = stopping
        self._owner = owner
        self._held: dict[Any, Future] = {}
        self._persisted: list[Future] = []

    def read(self, numbers: Sequence[int]) -> Iterator[tuple[int, pa.Table]]:
        """Compute partitions in order.

        Parameters
        ----------
        numbers : sequence of int
            The partitions to compute.

        Yields
        ------
        tuple of int and Table
            The number of a partition, and its rows.

        Raises
        ------
        SourceError
            If the computation of a partition fails.
        """
        waiting: list[Future] = []
        with ExitStack() as stack:
            stack.callback(self._release, waiting)
            self._keep(numbers)
            left = iter(numbers)
            for number in numbers:
                while len(waiting) < AHEAD and (following := next(left, None)) is not None:
                    waiting.append(self._submit(following))
                table = self._result(waiting[0], number)
                if table is None:
                    return
                if (read := waiting.pop(0)).key not in self._held:
                    read.release()
                yield number, table

    def _keep(self, numbers: Sequence[int]) -> None:
        """Compute what several partitions need, and keep it in the memory of the cluster."""
        from distributed import Future

        tasks = self._graph.tasks
        # What the collection has persisted stays until this source has ended, also if its client leaves.
        persisted = {task.key: task for task in tasks.values() if isinstance(task, Future)}
        if persisted:
            self._persisted = self._client.get(persisted, list(persisted), sync=False)
        needed = self._graph.needed([self._graph.keys[number] for number in numbers])
        kept = [key for key in self._graph.shared() if key in needed]
        if kept:
            futures = self._client.get(self._graph.needed(kept), kept, sync=False)
            self._held = dict(zip(kept, futures, strict=True))
            tasks.update(self._held)

    def _submit(self, number: int) -> Future:
        key = self._graph.keys[number]
        if key in self._held:
            return self._held[key]
        future: Future = self._client.get(self._graph.needed([key]), key, sync=False)
        return future

    def _result(self, future: Future, number: int) -> pa.Table | None:
        """Return the rows of a partition; None if the job is stopping."""
        done = threading.Event()
        future.add_done_callback(lambda _: done.set())
        while not done.wait(POLL_SECONDS):
            if self._stopping():
                return None
        try:
            return future.result()
        except Exception as error:  # the user's code may raise anything
            raise SourceError(
                f"{self._owner}: partition {number} could not be computed: {type(error).__name__}: "
                f"{str(error).rstrip('.')}{_hint(future)}"
            ) from error

    def _release(self, waiting: list[Future]) -> None:
        for future in [*waiting, *self._held.values(), *self._persisted]:
            future.release()


def _hint(future: Future) -> str:
    if future.status not in ("cancelled", "lost"):
        return ""
    return (
        ". Its data is no longer on the cluster: keep a persisted collection and its client until the first rows arrive"
    )
