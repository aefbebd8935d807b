"""Seeded simulations in which key groups of windows, sessions, joins and fused computes move."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from count_scenario import CountScenario
from function_scenario import FunctionScenario
from fused_scenario import FusedScenario
from group_scenario import WithGroups
from join_scenario import JoinScenario
from session_scenario import SessionScenario
from spread_checkpoint import placed, spread
from window_job import TIME
from window_scenario import WindowScenario

from dask_elastic.simulator import Placement, SimulatedCheckpoint
from dask_elastic.topology.windowing import EventWindow, Windowing


class OneSink(WithGroups):
    """Executors have homes on one node, so that one sink instance gets all results in order.

    From each second checkpoint the job continues with other numbers of executors.
    """

    computes = ("per_key",)
    sources = ("steps",)

    def _placement(self, random: np.random.Generator) -> Placement:
        homes = {name: (1,) * int(random.integers(2, 5)) for name in self.computes}
        cores = {name: tuple({1: 1} for _ in nodes) for name, nodes in homes.items()}
        return Placement(2, {**dict.fromkeys(self.sources, (0,)), **homes}, cores)

    def continued(self, first, checkpoint: SimulatedCheckpoint):
        world, kept = first.world, first.world.placement
        if checkpoint.number % 2:
            random = np.random.default_rng([self.seed, 9, checkpoint.number])
            wanted = {name: int(random.integers(1, 5)) for name in self.computes}
            checkpoint, world.placement = spread(world, checkpoint, wanted), placed(world, wanted)
        try:
            return super().continued(first, checkpoint)
        finally:
            world.placement = kept


@dataclass(frozen=True)
class WindowGroups(OneSink, WindowScenario):
    """Windows of all kinds."""


@dataclass(frozen=True)
class UpdatedGroups(OneSink, WindowScenario):
    """Windows that share slices unless the choice is fixed, with updates."""

    @property
    def windowing(self) -> Windowing:
        windows = ((EventWindow(0, 30, 10),), (EventWindow(3, 40, 10),), (EventWindow(0, 8, 2), EventWindow(0, 60, 20)))
        return Windowing(windows[self.seed % len(windows)], (TIME,), emit="updates")


@dataclass(frozen=True)
class SessionGroups(OneSink, SessionScenario):
    """Sessions."""


@dataclass(frozen=True)
class CountGroups(OneSink, CountScenario):
    """Windows by count."""


@dataclass(frozen=True)
class FunctionGroups(OneSink, FunctionScenario):
    """Functions over windows."""


@dataclass(frozen=True)
class JoinGroups(OneSink, JoinScenario):
    """Joins."""

    computes = ("joined",)
    sources = ("left", "right")


@dataclass(frozen=True)
class FusedGroups(OneSink, FusedScenario):
    """Several computes in each task."""

    def _placement(self, random: np.random.Generator) -> Placement:
        placed = super()._placement(random)
        return Placement(2, {"numbers": (0, 0), "per_key": placed.homes["per_key"]}, placed.cores)

    @staticmethod
    def _with_other_cores(placement: Placement, random: np.random.Generator) -> Placement:
        return placement


MERGED_KINDS = (WindowGroups, SessionGroups, CountGroups, FunctionGroups, JoinGroups, FusedGroups)
