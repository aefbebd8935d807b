"""One generation of a simulated job: its world, and what its instances contribute to checkpoints."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from dask_elastic.checkpoint.file_ref import FileRef
from dask_elastic.executor.control_records.inputs import Inputs
from dask_elastic.executor.primary_state import PrimaryState
from dask_elastic.simulator.checkpoints import ExecutorCut, SourceStanding
from dask_elastic.simulator.durability.sink_target import Transaction
from dask_elastic.simulator.durability.storage import SimulatedStorage
from dask_elastic.simulator.durability.transactional_sink import TransactionalSink
from dask_elastic.simulator.fiber import FiberSteps
from dask_elastic.simulator.instances import Durability
from dask_elastic.topology.transactions import recovered_writers
from dask_elastic.vocab.errors import CheckpointError
from dask_elastic.vocab.identity import ExecutorId

if TYPE_CHECKING:
    from dask_elastic.simulator.durability.coordinator import SimulatedCoordinator
    from dask_elastic.simulator.world import World


class GenerationStart(NamedTuple):
    """The number of a generation, and the checkpoint from which it begins; 0 for none."""

    generation: int
    checkpoint: int


class SimulatedGeneration(Durability):
    """Passes what instances contribute on to storage and to the coordinator of their cluster.

    Parameters
    ----------
    coordinator : SimulatedCoordinator
        The coordinator that has started the generation.
    storage : SimulatedStorage
        The storage.
    start : GenerationStart
        Its number, and the checkpoint from which it begins.
    prepared : sequence of tuple of Transaction
        What the writers had prepared for that checkpoint, by their nodes.

    Attributes
    ----------
    world : World or None
        Where it runs, once that is built.
    instances : list of ExecutorId
        All sources, executors and sinks.
    """

    def __init__(
        self,
        coordinator: SimulatedCoordinator,
        storage: SimulatedStorage,
        start: GenerationStart,
        prepared: tuple[tuple[Transaction, ...], ...],
    ):
        super().__init__(self)
        self.coordinator = coordinator
        self.storage = storage
        self.start = start
        self.instances: list[ExecutorId] = []
        self._prepared = prepared
        self.world: World | None = None

    def sink(self, world: World, identity: ExecutorId, inputs: Inputs) -> TransactionalSink:
        """Return a new instance of a sink, with what writers had prepared that are its own to commit."""
        inputs_of = (world.placement.instances(name) for name in world.components[identity.component].inputs)
        nodes = sorted({world.placement.node_of(instance) for upstream in inputs_of for instance in upstream})
        recovered = [
            transaction
            for writer in recovered_writers(len(self._prepared), nodes, identity.index)
            for transaction in self._prepared[writer]
        ]
        return TransactionalSink(world, identity, inputs, self, recovered)

    # what instances contribute

    def add(self, instance: ExecutorId) -> None:
        """Add an instance of the job."""
        self.instances.append(instance)

    def reached(self, checkpoint: int, source: ExecutorId, standing: SourceStanding) -> None:
        """Take where a source has sent the barrier."""
        self._spawn(source, self._acknowledge(checkpoint, source, standing))

    def cut(self, checkpoint: int, executor: ExecutorId, store: PrimaryState) -> None:
        """Copy the state of an executor; it is then written."""
        copied = ExecutorCut(store.extract(), None, store.input_schema)
        self._spawn(executor, self._write(checkpoint, executor, copied))

    def received(self, checkpoint: int, sink: ExecutorId, batches: Iterable[tuple[int, pa.RecordBatch]]) -> None:
        """Raise: sinks of durable jobs prepare."""
        raise AssertionError(f"{sink} does not prepare")

    def prepared(self, checkpoint: int, sink: ExecutorId, handles: tuple[object, ...]) -> None:
        """Take what a writer has prepared and not committed."""
        self._spawn(sink, self._acknowledge(checkpoint, sink, handles))

    def request(self, sink: ExecutorId) -> None:
        """Request a checkpoint soon."""
        self._spawn(sink, self._request())

    def failed(self, sink: ExecutorId) -> None:
        """End the job because a sink has failed; it is then resumed."""
        self._spawn(sink, self._fail())

    def _spawn(self, instance: ExecutorId, steps: FiberSteps) -> None:
        world = self.world
        assert world is not None, "instances run in a world"
        world.spawn(f"{instance} tells", steps, world.placement.node_of(instance))

    def _write(self, checkpoint: int, executor: ExecutorId, copied: ExecutorCut) -> FiberSteps:
        path = f"state/{checkpoint}/{executor.component}-{executor.index}-{self.start.generation}"
        try:
            file = yield from self.storage.request("state", partial(self._store, path, copied))
        except CheckpointError:
            self._scheduler.part_failed(self.start.generation, checkpoint)
            return
        yield from self._acknowledge(checkpoint, executor, file)

    def _store(self, path: str, copied: ExecutorCut) -> FileRef:
        file = self.storage.folder.write(path, [b"state"])
        self.storage.states[path] = copied
        return file

    def _acknowledge(self, checkpoint: int, instance: ExecutorId, part: object) -> FiberSteps:
        yield None
        self._scheduler.acknowledge(self.start.generation, checkpoint, instance, part)

    @property
    def _scheduler(self) -> SimulatedCoordinator:
        """The scheduler that messages reach: if it was lost, the next one may run at the same address."""
        return self.coordinator if self.coordinator.alive else self.coordinator.job.coordinator

    def _request(self) -> FiberSteps:
        yield None
        self._scheduler.request(self.start.generation)

    def _fail(self) -> FiberSteps:
        yield None
        self._scheduler.fail(self.start.generation)


def halt(world: World, survivors: Collection[int]) -> None:
    """End a generation on all nodes but some, which have not noticed and cannot reach the others."""
    world.schedule.forget_calls()
    for node in range(world.placement.nodes):
        if node not in survivors:
            world.schedule.kill(node)
            world.network.kill(node)
