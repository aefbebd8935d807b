"""A simulated job that survives crashes: its generations, those that do not know they have ended included."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from dask_elastic.checkpoint.manifest import Manifest
from dask_elastic.simulator.checkpoints import SimulatedCheckpoint, SourceStanding
from dask_elastic.simulator.durability.coordinator import TOPOLOGY, SimulatedCoordinator
from dask_elastic.simulator.durability.crash import Crash
from dask_elastic.simulator.durability.generation import SimulatedGeneration, halt
from dask_elastic.simulator.durability.sink_target import SinkTarget, Transaction
from dask_elastic.simulator.durability.storage import Moment, SimulatedStorage
from dask_elastic.simulator.durability.transactional_sink import GenerationStart
from dask_elastic.simulator.schedule import Schedule
from dask_elastic.simulator.world import World
from dask_elastic.vocab.errors import ProtocolError
from dask_elastic.vocab.identity import ExecutorId

MOST_STEPS = 60_000
"""A job that has not ended after so many steps never will."""

SUSPENDED = 250
"""A node that survives its generation is suspended for up to so many steps of the job; some are not at all."""

AFTERMATH = 100
"""The job goes on for so many steps after a generation has finished."""

CONTROL_SHARE = 0.25
"""The share of steps of coordinators and storage."""

MakeWorld = Callable[[SimulatedGeneration, SimulatedCheckpoint], World]


class DurableJob:
    """Runs a job to its end through crashes, and checks what its generations and its sinks do.

    Parameters
    ----------
    random : numpy.random.Generator
        The source of all randomness.
    make_world : callable
        Builds the world of a generation that begins from a checkpoint.
    target : SinkTarget
        What the sinks write to.
    crashes : sequence of Crash
        What happens.
    faults : float
        See `SimulatedStorage`.
    keep_history : bool
        Whether to remember every step of coordinators and storage.

    Attributes
    ----------
    control : Schedule
        Runs coordinators and storage.
    generations : list of SimulatedGeneration
        All that have started, oldest first.
    happened : Counter of str
        What happened.
    """

    def __init__(
        self,
        random: np.random.Generator,
        make_world: MakeWorld,
        target: SinkTarget,
        crashes: Sequence[Crash],
        faults: float = 0.0,
        keep_history: bool = False,
    ):
        self.control = Schedule(random, keep_history=keep_history)
        self.storage = SimulatedStorage(self.control, target, faults, self.watch, self.after)
        self.storage.folder.write(TOPOLOGY.path, [b"1"])
        self.generations: list[SimulatedGeneration] = []
        self.happened: Counter[str] = Counter()
        self.steps = 0
        self._make_world = make_world
        self._requests: Counter[tuple[str, Moment]] = Counter()
        self._crashes = {(crash.request, crash.moment, crash.at): crash for crash in crashes}
        self._told: dict[int, int] = {}
        # Worlds of ended generations with nodes that go on.
        self._zombies: list[World] = []
        self._called = 0
        self._calls: list[tuple[int, int, Callable[[], None]]] = []
        self.coordinator = SimulatedCoordinator(self, 0)
        self.coordinators = [self.coordinator]

    # generations

    def begin(
        self, coordinator: SimulatedCoordinator, start: GenerationStart, manifest: Manifest | None
    ) -> SimulatedGeneration:
        """Begin a generation from its checkpoint.

        Raises
        ------
        ProtocolError
            If its number was used, it begins from a checkpoint before one that sinks were told to commit, or the
            checkpoint lacks a file.
        """
        number, base = start
        if any(number == known.start.generation for known in self.generations):
            raise ProtocolError(f"generation {number} begins a second time")
        newest_told = max(self._told, default=0)
        if base < newest_told:
            raise ProtocolError(f"generation {number} begins from checkpoint {base}, but {newest_told} was committed")
        restored, prepared = self._restored(base, manifest)
        part = SimulatedGeneration(coordinator, self.storage, start, prepared)
        self.happened["generations"] += 1
        self.happened["generations from a checkpoint"] += base > 0
        self.generations.append(part)
        part.world = self._make_world(part, restored)
        self.control.record("generation {} begins from checkpoint {}", number, base)
        return part

    def _restored(
        self, base: int, manifest: Manifest | None
    ) -> tuple[SimulatedCheckpoint, tuple[tuple[Transaction, ...], ...]]:
        restored = SimulatedCheckpoint(base)
        prepared: tuple[tuple[Transaction, ...], ...] = ()
        if manifest is None:
            return restored, prepared
        for state in manifest.states:
            for index, chain in enumerate(state.chains):
                (file,) = chain.files
                found = self.storage.states.get(file.path)
                if found is None:
                    raise ProtocolError(f"checkpoint {base} lacks {file.path}")
                restored.executors[ExecutorId(state.name, index)] = found
        for name, parts in manifest.positions.items():
            for index, pickled in enumerate(parts):
                part = () if pickled is None else pickled.load(name)
                if isinstance(part, SourceStanding):
                    restored.sources[ExecutorId(name, index)] = part
                else:
                    prepared = (*prepared, part)
        return restored, prepared

    def told(self, generation: int, number: int) -> None:
        """Check that a coordinator may tell sinks to commit a checkpoint.

        Raises
        ------
        ProtocolError
            If another one has told that for the same number, or a later generation replays its rows.
        """
        if number in self._told:
            raise ProtocolError(f"generations {self._told[number]} and {generation} both commit checkpoint {number}")
        for later in self.generations:
            if later.start.generation > generation and later.start.checkpoint < number:
                raise ProtocolError(
                    f"generation {generation} commits checkpoint {number}, but generation {later.start.generation} "
                    f"has begun from checkpoint {later.start.checkpoint}"
                )
        self._told[number] = generation
        self.happened["complete"] += 1

    # crashes

    def watch(self, request: str, moment: Moment) -> None:
        """Count a request, and let happen what happens at it."""
        self._requests[request, moment] += 1
        crash = self._crashes.pop((request, moment, self._requests[request, moment]), None)
        if crash is not None:
            self._crash(crash)

    def _crash(self, crash: Crash) -> None:
        coordinator = self.coordinator
        part = coordinator.part
        self.happened[crash.kind] += 1
        self.happened[f"{crash.moment} {crash.request}"] += 1
        self.control.record("{}", crash)
        if crash.kind == "home":
            if part is not None and part.world is not None and not part.finished:
                nodes = self._survivors(part.world, crash.survive)
                coordinator.lose_home(nodes)
        elif crash.kind == "scheduler":
            self.lose_scheduler(coordinator, crash.survive)
        else:
            if part is not None and part.world is not None:
                self._zombies.append(part.world)
            self._resume()

    def lose_scheduler(self, coordinator: SimulatedCoordinator, survive: float) -> None:
        """Lose a scheduler; another one resumes the job, if it was the newest."""
        if not coordinator.alive:
            return
        coordinator.alive = False
        self.control.kill(coordinator.number)
        part = coordinator.part
        if part is not None and part.world is not None:
            halt(part.world, self._survivors(part.world, survive))
        if coordinator is self.coordinator:
            self._resume()

    def taken_over(self, coordinator: SimulatedCoordinator) -> None:
        """Note that a scheduler has found that another one continues the job; if none does, the user resumes it."""
        self.happened["taken over"] += 1
        coordinator.alive = False
        if coordinator is self.coordinator:
            others = [other for other in self.coordinators if other.alive]
            if others:
                self.coordinator = others[-1]
            else:
                self._resume()

    def _resume(self) -> None:
        self.coordinator = SimulatedCoordinator(self, len(self.coordinators))
        self.coordinators.append(self.coordinator)

    def _survivors(self, world: World, share: float) -> set[int]:
        """Choose the nodes of a generation that go on; some are suspended, and wake later."""
        survivors = {node for node in range(world.placement.nodes) if self.control.draw() < share}
        for node in survivors:
            if self.control.draw() < 0.7:
                world.schedule.stopped.add(node)
                self.after(int(SUSPENDED * self.control.draw()), partial(world.schedule.stopped.discard, node))
        if survivors and world not in self._zombies:
            self._zombies.append(world)
            self.happened["survivors"] += 1
        return survivors

    # the run

    def run(self) -> World:
        """Run the job until a generation has finished, and nothing moves any more; returns that generation's world.

        Raises
        ------
        ProtocolError
            If an invariant is broken, or the job never ends.
        """
        while not self._is_finished and self._step() and self.steps < MOST_STEPS:
            self.steps += 1
        for _ in range(AFTERMATH):
            # Nodes of earlier generations may go on.
            self._step()
            self.steps += 1
        worlds = [part.world for part in self.generations if part.world is not None]
        finished = [part.world for part in self.generations if part.world is not None and part.finished]
        if not finished:
            waiting = ", ".join(sorted(self.control.waiting()))
            raise ProtocolError(f"the job has not ended after {self.steps} steps; these wait: {waiting}")
        for schedule in (self.control, *(world.schedule for world in worlds)):
            schedule.close()
        return finished[-1]

    @property
    def _newest(self) -> World | None:
        part = self.coordinator.part
        return None if part is None else part.world

    @property
    def _is_finished(self) -> bool:
        # One that another scheduler has superseded can only finish if it has committed everything.
        return self.steps % 8 == 0 and any(part.finished for part in self.generations)

    def _step(self) -> bool:
        if (crash := self._crashes.pop(("", "before", self.steps), None)) is not None:
            self._crash(crash)
        while self._calls and self._calls[0][0] <= self.steps:
            heapq.heappop(self._calls)[2]()
        newest = self._newest
        draw = self.control.draw()
        if draw < CONTROL_SHARE and self.control.step():
            return True
        if self._zombies and draw > 0.7:
            world = self._zombies[int(len(self._zombies) * self.control.draw())]
            if world.step():
                return True
        if newest is not None and newest.step():
            return True
        return self.control.step() or any(world.step() for world in self._zombies) or self._call_next()

    def after(self, steps: int, call: Callable[[], None]) -> None:
        """Call something after some steps of the job; earlier if nothing else can happen."""
        self._called += 1
        heapq.heappush(self._calls, (self.steps + steps, self._called, call))

    def _call_next(self) -> bool:
        if not self._calls:
            return False
        self.steps = max(self.steps, self._calls[0][0])
        return True
