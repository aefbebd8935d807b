"""Seeded simulations of windows whose shards move instantly."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

from window_job import WINDOWINGS
from window_scenario import WindowScenario, WindowSimulation

from dask_elastic.migration.instant import InstantMove
from dask_elastic.topology.windowing import EventWindow, Windowing

MERGED = tuple(one for one in WINDOWINGS if isinstance(one.windows[0], EventWindow) and not one.revised)
"""Windows whose partials can be handed over."""


@dataclass(frozen=True)
class InstantScenario(WindowScenario):
    """A `WindowScenario` with instant moves, or those of another strategy."""

    strategy: str = "instant"

    @property
    def windowing(self) -> Windowing:
        return MERGED[self.seed % len(MERGED)]

    def _simulation(self, batches, shards, random, options) -> WindowSimulation:
        options = replace(options, limits=replace(options.limits, migration=self.strategy))
        if self.strategy not in ("labelled", "disruptive"):
            # The old and the new owner of a shard process rows of one key at the same time.
            options = replace(options, order=())
        return super()._simulation(batches, shards, random, options)


def actions_of(monkeypatch) -> Counter[str]:
    """Return a counter of the actions of all instant moves from now on."""
    taken: Counter[str] = Counter()
    real = InstantMove.handle

    def handle(self, event):
        action = real(self, event)
        taken[f"{event.name} {action.name}"] += 1
        return action

    monkeypatch.setattr(InstantMove, "handle", handle)
    return taken
