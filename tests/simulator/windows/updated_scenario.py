"""Seeded simulations of windows that share slices, and whose open instances have results."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import pairwise

from window_job import TIME, Expected, Instance
from window_scenario import WindowScenario, WindowSimulation

from dask_elastic.simulator import SimulatedCheckpoint
from dask_elastic.topology.windowing import EventWindow, Windowing

UPDATED = (
    Windowing((EventWindow(0, 30, 10),), (TIME,), emit="updates", share=True),
    Windowing((EventWindow(0, 30, 10),), (TIME,), emit="updates", share=True, allowed_lateness=10),
    Windowing(
        (EventWindow(0, 10, 10), EventWindow(0, 30, 30), EventWindow(5, 20, 10)), (TIME,), emit="updates", share=True
    ),
    Windowing((EventWindow(3, 40, 10),), (TIME,), emit="updates", share=True),
    Windowing((EventWindow(0, 8, 2), EventWindow(0, 60, 20)), (TIME,), 30, emit="updates", share=True),
)


@dataclass
class UpdatedSimulation(WindowSimulation):
    """One simulation; each result of an open instance has rows that those before it lack, and the last one has all."""

    def _check_instance(self, instance: Instance, results: list[dict], wanted: Expected) -> None:
        super()._check_instance(instance, results, wanted)
        updates = [row["numbers"] for row in results if row["revision"] is None]
        for before, after in pairwise(updates):
            assert set(before) < set(after), (instance, before, after)
        on_time = sorted(wanted.on_time.get(instance, []))
        assert (updates[-1] if updates else []) == on_time, instance

    def happened(self) -> Counter[str]:
        happened = super().happened()
        for results in self._emitted().values():
            happened["updated again"] += sum(row["revision"] is None for row in results) > 1
        return happened


@dataclass(frozen=True)
class UpdatedScenario(WindowScenario):
    """A `WindowScenario` with windows that share slices and have updates."""

    @property
    def windowing(self) -> Windowing:
        found = UPDATED[self.seed % len(UPDATED)]
        assert found.shares
        return found

    def _simulation(self, batches, shards, random, options) -> UpdatedSimulation:
        return UpdatedSimulation(**vars(super()._simulation(batches, shards, random, options)))

    def continued(self, first: WindowSimulation, checkpoint: SimulatedCheckpoint) -> UpdatedSimulation:
        return UpdatedSimulation(**vars(super().continued(first, checkpoint)))
