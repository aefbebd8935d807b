"""The scheduler of a simulated job that restarts: it begins generations, and takes their checkpoints.

The order of its steps is that of `runtime.scheduler`; what it decides is decided by the same code.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Generator
from functools import partial
from typing import Protocol

from dask_elastic.checkpoint.catalog import Catalog
from dask_elastic.checkpoint.chain import FULL, Chain, ChainLink
from dask_elastic.checkpoint.file_ref import FileRef
from dask_elastic.checkpoint.manifest import Manifest, OperatorState
from dask_elastic.checkpoint.pickled import Pickled
from dask_elastic.checkpoint.sweep import sweep
from dask_elastic.checkpoint.takeover import choose_checkpoint, complete_checkpoint, reserve_generation
from dask_elastic.control.checkpoint_progress import CheckpointProgress
from dask_elastic.simulator.checkpoint_commands import CheckpointCommands
from dask_elastic.simulator.durability.generation import SimulatedGeneration, halt
from dask_elastic.simulator.durability.storage import Moment, SimulatedStorage
from dask_elastic.simulator.durability.transactional_sink import GenerationStart
from dask_elastic.simulator.fiber import Condition, FiberSteps
from dask_elastic.simulator.schedule import Schedule
from dask_elastic.vocab.errors import CheckpointError, CheckpointSuperseded
from dask_elastic.vocab.identity import ExecutorId

BETWEEN = 150
"""The most steps between the end of a checkpoint and the next one."""

PATIENCE = 2_500
"""The most steps for which a checkpoint may be in progress, and for which a restart waits for a manifest."""

HASTY = 0.1
"""The share of checkpoints that are given up after a tenth of that."""


class Run(Protocol):
    """The run of a job through its crashes; implemented by `DurableJob`."""

    control: Schedule
    storage: SimulatedStorage
    happened: Counter[str]
    coordinator: SimulatedCoordinator

    def begin(
        self, coordinator: SimulatedCoordinator, start: GenerationStart, manifest: Manifest | None
    ) -> SimulatedGeneration:
        """Begin a generation from its checkpoint."""
        ...

    def told(self, generation: int, number: int) -> None:
        """Check that a coordinator may tell sinks to commit a checkpoint."""
        ...

    def taken_over(self, coordinator: SimulatedCoordinator) -> None:
        """Note that a scheduler has found that another one continues the job."""
        ...

    def lose_scheduler(self, coordinator: SimulatedCoordinator, survive: float) -> None:
        """Lose a scheduler."""
        ...

    def watch(self, request: str, moment: Moment) -> None:
        """Let happen what happens at a request."""
        ...

    def after(self, steps: int, call: Callable[[], None]) -> None:
        """Call something after some steps of the job."""
        ...


class SimulatedCoordinator:
    """Begins the generations of a job on one cluster, one after the other, and takes their checkpoints.

    Parameters
    ----------
    job : Run
        The job.
    number : int
        The number of the cluster.

    Attributes
    ----------
    part : SimulatedGeneration or None
        The newest generation.
    alive : bool
        Whether the scheduler is not lost.
    refused : int
        Acknowledgements of earlier generations.
    """

    def __init__(self, job: Run, number: int):
        self.job = job
        self.number = number
        self.part: SimulatedGeneration | None = None
        self.alive = True
        self.refused = 0
        self._generation = 0
        self._owned: int | None = None
        self._known = 0
        self._last = 0
        self._progress: CheckpointProgress[object] | None = None
        self._settled = False
        self._complete = False
        self._halted = True
        self._publishing = False
        self._requested = False
        self._spawn("starts", self._start())

    def _spawn(self, name: str, steps: FiberSteps) -> None:
        self.job.control.spawn(f"scheduler {self.number} {name}", steps, self.number)

    # what nodes say

    @property
    def reached(self) -> SimulatedCoordinator:
        """The scheduler that messages reach: if this one was lost, the next one may run at the same address."""
        return self if self.alive else self.job.coordinator

    def _runs(self, generation: int) -> bool:
        return self.alive and not self._halted and generation == self._generation

    def acknowledge(self, generation: int, number: int, instance: ExecutorId, part: object) -> None:
        """Take what an instance has contributed to the checkpoint in progress."""
        if not self._runs(generation):
            self.refused += generation != self._generation
            return
        progress = self._progress
        if progress is None or progress.number != number:
            return
        self.job.watch("acknowledge", "before")
        if self._runs(generation) and progress.acknowledge(instance, part):
            self._settled = self._complete = True
            self.job.watch("acknowledge", "after")

    def part_failed(self, generation: int, number: int) -> None:
        """Give up the checkpoint in progress, because an instance could not contribute to it."""
        if self._runs(generation) and self._progress is not None and self._progress.number == number:
            self._settled = True

    def request(self, generation: int) -> None:
        """Take a checkpoint soon."""
        if self._runs(generation):
            self._requested = True

    def fail(self, generation: int) -> None:
        """End the job, because a sink has failed; another scheduler resumes it."""
        if self._runs(generation):
            self.job.lose_scheduler(self, survive=0.0)

    # generations

    def lose_home(self, survivors: Collection[int]) -> None:
        """End the generation, and begin another one."""
        if self.part is None or self._halted or not self.alive:
            return
        self._halted = True
        assert self.part.world is not None, "the generation has started"
        halt(self.part.world, survivors)
        self._spawn("restarts", self._restart())

    def _restart(self) -> FiberSteps:
        late = False

        def be_late() -> None:
            nonlocal late
            late = True

        self.job.after(self._patience(), be_late)
        yield lambda: late or not self._publishing
        self._progress = None
        yield from self._start()

    def _start(self) -> FiberSteps:
        storage = self.job.storage
        catalog = Catalog(storage.folder)
        while True:
            try:
                generation = yield from storage.requests(reserve_generation(catalog, self._generation, self._owned))
                self._owned = generation
                checkpoint = yield from storage.requests(choose_checkpoint(catalog, generation, self._known))
                number = yield from storage.request("next_number", catalog.next_number)
                manifest = None
                if checkpoint:
                    manifest = yield from storage.request("load", partial(catalog.manifest, checkpoint))
                break
            except CheckpointSuperseded:
                self.job.taken_over(self)
                return
            except CheckpointError as error:
                self.job.control.record("scheduler {} cannot start a generation: {}", self.number, error)
                yield None
        start = GenerationStart(generation, checkpoint)
        self._generation, self._known = start
        self._last = max(self._last, number - 1)
        self._halted = self._publishing = False
        self.part = self.job.begin(self, start, manifest)
        self._spawn(f"takes checkpoints of generation {start.generation}", self._take_all(self.part))

    # checkpoints

    def _patience(self) -> int:
        patience = PATIENCE * self.job.control.draw()
        return int(patience / 10 if self.job.control.draw() < HASTY else patience)

    def _take_all(self, part: SimulatedGeneration) -> FiberSteps:
        generation = part.start.generation
        while self._runs(generation):
            self._requested = False
            self.job.after(int(BETWEEN * self.job.control.draw()), partial(self.request, generation))
            yield lambda: (self._requested and not part.is_moving) or not self._runs(generation)
            if self._runs(generation):
                yield from self._take(part)

    def _take(self, part: SimulatedGeneration) -> FiberSteps:
        generation = part.start.generation
        self._last += 1
        number = self._last
        progress: CheckpointProgress[object] = CheckpointProgress(number, part.instances, 0.0)
        self._progress, self._settled, self._complete = progress, False, False
        assert part.world is not None, "the generation has started"
        contains_end = part.world.finished
        commands = CheckpointCommands(part.world, self._give_up)
        commands.tell_begun(number)
        expired = False

        def expire() -> None:
            nonlocal expired
            expired = True

        self.job.after(self._patience(), expire)
        yield lambda: self._settled or expired or not self._runs(generation)
        if not self._runs(generation):
            return
        published = False
        if self._complete:
            published = yield from self._publish(part, progress)
        if not self._runs(generation):
            return
        self._progress = None
        if not published:
            self.job.happened["given up"] += 1
            commands.tell_given_up(number)
            return
        part.saved |= contains_end
        self.job.told(generation, number)
        commands.tell_complete(number)
        self.job.watch("told", "after")
        yield from self._sweep()

    def _give_up(self) -> None:
        """Give up the checkpoint in progress, unless all instances have contributed to it: a home is about to move."""
        self._settled = True

    def _publish(
        self, part: SimulatedGeneration, progress: CheckpointProgress[object]
    ) -> Generator[Condition | None, None, bool]:
        generation = part.start.generation
        catalog = Catalog(self.job.storage.folder)
        self._publishing = True
        try:
            yield from self.job.storage.requests(complete_checkpoint(catalog, manifest_of(generation, progress)))
        except CheckpointSuperseded:
            if self._runs(generation):
                assert part.world is not None, "the generation has started"
                halt(part.world, ())
                self.job.taken_over(self)
            return False
        except CheckpointError as error:
            self.job.control.record("checkpoint {} is not published: {}", progress.number, error)
            return False
        finally:
            if generation == self._generation:
                self._publishing = False
        if generation == self._generation:
            self._known = progress.number
        return True

    def _sweep(self) -> FiberSteps:
        try:
            yield from self.job.storage.request("sweep", partial(sweep, Catalog(self.job.storage.folder)))
        except CheckpointError as error:
            self.job.control.record("old checkpoints stay: {}", error)


def manifest_of(generation: int, progress: CheckpointProgress[object]) -> Manifest:
    """Return the manifest of a checkpoint that all instances have acknowledged."""
    by_component: dict[str, dict[int, object]] = {}
    for instance, part in progress.parts.items():
        by_component.setdefault(instance.component, {})[instance.index] = part
    states, placed = [], {}
    for name, parts in sorted(by_component.items()):
        if isinstance(parts[min(parts)], FileRef):
            chains = tuple(_chain(progress.number, parts[index]) for index in sorted(parts))
            states.append(OperatorState(name, ("key",), len(chains), 1, chains))
        else:
            placed[name] = tuple(_pickled(parts.get(index)) for index in range(max(parts) + 1))
    return Manifest(
        job="simulated",
        number=progress.number,
        generation=generation,
        started=0.0,
        ended=0.0,
        topology=TOPOLOGY,
        states=tuple(states),
        positions=placed,
    )


TOPOLOGY = FileRef("topology/000001.pickle", 1, "simulated")


def _chain(number: int, file: object) -> Chain:
    assert isinstance(file, FileRef), "executors write files"
    return Chain(1, (ChainLink(number, (FULL,), file),))


def _pickled(part: object) -> Pickled | None:
    return None if part is None or part == () else Pickled.of(part)
