"""A sink of a simulated job that commits what complete checkpoints cover."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple, Protocol

import pyarrow as pa

from dask_elastic.executor.control_records.inputs import Inputs
from dask_elastic.simulator.durability.sink_target import Transaction
from dask_elastic.simulator.durability.storage import SimulatedStorage
from dask_elastic.simulator.fiber import FiberSteps
from dask_elastic.simulator.sink import SimulatedSink, Told, Waiting
from dask_elastic.simulator.surroundings import Surroundings
from dask_elastic.topology.transactions import Transactions
from dask_elastic.vocab.batch import Batch
from dask_elastic.vocab.errors import CheckpointError
from dask_elastic.vocab.identity import ExecutorId


class GenerationStart(NamedTuple):
    """The number of a generation, and the checkpoint from which it begins; 0 for none."""

    generation: int
    checkpoint: int


class Participation(Protocol):
    """What a sink needs of its generation; implemented by `SimulatedGeneration`."""

    storage: SimulatedStorage
    start: GenerationStart

    def prepared(self, checkpoint: int, sink: ExecutorId, handles: tuple[object, ...]) -> None:
        """Take what a writer has prepared and not committed."""
        ...

    def request(self, sink: ExecutorId) -> None:
        """Request a checkpoint soon."""
        ...

    def failed(self, sink: ExecutorId) -> None:
        """End the job because a sink has failed."""
        ...


class TransactionalSink(SimulatedSink):
    """One instance of a sink; see `runtime.worker.sink_thread` for the one of real jobs.

    Parameters
    ----------
    world : Surroundings
        Returns credit.
    identity : ExecutorId
        Which instance of which sink.
    inputs : Inputs
        The upstream instances on its node.
    generation : Participation
        Takes what it has prepared.
    recovered : iterable of Transaction
        What the checkpoint from which the generation began holds for it.
    """

    def __init__(
        self,
        world: Surroundings,
        identity: ExecutorId,
        inputs: Inputs,
        generation: Participation,
        recovered: Iterable[Transaction],
    ):
        self.generation = generation
        self._recovered = [*recovered]
        self._transactions = Transactions()
        self._rows: list[pa.RecordBatch] = []
        self._after = 0
        super().__init__(world, identity, inputs)

    def _open(self) -> FiberSteps:
        storage, start = self.generation.storage, self.generation.start
        for transaction in self._recovered:
            yield from self._request("commit", partial(storage.target.commit, transaction))
        replayed = partial(storage.target.delete_replayed, start.generation, start.checkpoint)
        yield from self._request("delete", replayed)
        self._after = start.checkpoint
        self._request_last()

    @property
    def _is_finished(self) -> bool:
        return not self.inputs.open and self._transactions.is_finished

    def _request_last(self) -> None:
        if not self.inputs.open:
            self.generation.request(self.identity)

    def _hear(self, told: Told) -> FiberSteps:
        yield from super()._hear(told)
        if told.event == "given up":
            self._request_last()
        elif told.event == "complete":
            for transaction in self._transactions.complete(told.checkpoint):
                assert isinstance(transaction, Transaction)
                commit = partial(self.generation.storage.target.commit, transaction)
                yield from self._request("commit", commit)
            self._transactions.committed(told.checkpoint)

    def _take(self, taken: Waiting) -> FiberSteps:
        _, item, _ = taken
        if isinstance(item, Batch):
            self._rows.append(item.rows)
        yield from super()._take(taken)
        if item is None:
            self._request_last()

    def _prepare(self, checkpoint: int | None) -> FiberSteps:
        if checkpoint is None:
            return
        number = self.generation.start.generation
        transaction = Transaction(number, self._after, checkpoint, self.identity)
        rows, self._rows = tuple(self._rows), []
        self._after = checkpoint
        if rows:
            yield from self._request("prepare", partial(self.generation.storage.target.prepare, transaction, rows))
        self._transactions.add(checkpoint, transaction if rows else None, last=not self.inputs.open)
        self.generation.prepared(checkpoint, self.identity, self._transactions.handles)
        self._alignment.passed(checkpoint)

    def _request(self, what: str, effect: Callable[[], None]) -> FiberSteps:
        """Request something of the target; an error of a sink ends the job, and the user resumes it."""
        try:
            yield from self.generation.storage.request(what, effect)
        except CheckpointError:
            self.generation.failed(self.identity)
            yield lambda: False
