"""Seeded simulations in which windows cease to share slices and begin to again, under disturbances and checkpoints."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from window_job import WINDOWINGS
from window_scenario import WindowScenario, WindowSimulation

from dask_elastic.executor import events
from dask_elastic.executor.windows import closing, window_logic
from dask_elastic.simulator import SimulatedCheckpoint
from dask_elastic.state.windows.instance_marks import has_mark
from dask_elastic.topology.windowing import Windowing

CHANGES = 6
BETWEEN = 60
"""How many changes there are, and the most steps between two of them."""

AHEAD = 40
"""Microseconds of event time by which changes are planned ahead, at most."""

SHARED = [windowing for windowing in WINDOWINGS if windowing.changes_sharing]


@dataclass
class SharingSimulation(WindowSimulation):
    """One simulation; whatever the changes, the results are those of the rows.

    Attributes
    ----------
    planned : list of (int, bool)
        Event time and choice of each change.
    seen : set of (int, bool)
        The event times that batches were stamped with, and the choice for them.
    mixed : int
        How often instances were closed that had partials of both kinds.
    """

    planned: list[tuple[int, bool]] = field(default_factory=list)
    seen: set[tuple[int, bool]] = field(default_factory=set)
    mixed: int = 0

    def run(self) -> None:
        logic = window_logic.WindowLogic
        process, merged = logic.process, closing.merged_slices

        def noted(windows, rows, hashes, *args, reached=None, separate=False, **options):
            self.seen.add((reached, separate))
            return process(windows, rows, hashes, *args, reached=reached, separate=separate, **options)

        def counted(bound, found, *args):
            marks = has_mark(found.values[bound.own])
            self.mixed += bool(marks.any() and not marks.all())
            return merged(bound, found, *args)

        logic.process, closing.merged_slices = noted, counted
        try:
            super().run()
        finally:
            logic.process, closing.merged_slices = process, merged

    def change(self, random: np.random.Generator) -> None:
        """Plan a change for all executors, later than what any of them has reached, and than the changes before."""
        reached = [home.executor.store.event_time or 0 for home in self.world.homes.values()]
        since = max([*reached, *(since for since, _ in self.planned)]) + int(random.integers(1, AHEAD))
        separate = bool(random.integers(0, 2))
        self.planned.append((since, separate))
        for home in self.world.homes.values():
            home.executor.handle(events.ChangeSharing(separate, since), self.world.now)

    def check(self) -> None:
        super().check()
        for reached, separate in self.seen:
            chosen = [choice for since, choice in self.planned if reached is not None and since <= reached]
            assert separate is (chosen[-1] if chosen else False), (reached, self.planned)

    def happened(self) -> Counter[str]:
        happened = super().happened()
        happened["rows of instances"] += any(separate for _, separate in self.seen)
        happened["closes of both"] += self.mixed
        return happened


@dataclass(frozen=True)
class SharingScenario(WindowScenario):
    """A `WindowScenario` with windows that may share slices."""

    @property
    def windowing(self) -> Windowing:
        return SHARED[self.seed % len(SHARED)]

    def _simulation(self, batches, shards, random, options) -> SharingSimulation:
        return self._changing(super()._simulation(batches, shards, random, options))

    def continued(self, first: WindowSimulation, checkpoint: SimulatedCheckpoint) -> SharingSimulation:
        return self._changing(super().continued(first, checkpoint))

    def _changing(self, made: WindowSimulation) -> SharingSimulation:
        simulation = SharingSimulation(**vars(made))
        random = np.random.default_rng([self.seed, 4])
        for at in np.cumsum(random.integers(1, BETWEEN, CHANGES)).tolist():
            simulation.world.schedule.at(at, partial(simulation.change, random))
        return simulation
