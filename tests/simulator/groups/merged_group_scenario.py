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
from window_scenario import WindowScenario

from dask_elastic.simulator import Placement


class OneSink(WithGroups):
    """Executors have homes on one node, so that one sink instance gets all results in order."""

    computes = ("per_key",)
    sources = ("steps",)

    def _placement(self, random: np.random.Generator) -> Placement:
        homes = {name: (1,) * int(random.integers(2, 5)) for name in self.computes}
        cores = {name: tuple({1: 1} for _ in nodes) for name, nodes in homes.items()}
        return Placement(2, {**dict.fromkeys(self.sources, (0,)), **homes}, cores)


@dataclass(frozen=True)
class WindowGroups(OneSink, WindowScenario):
    """Windows of all kinds."""


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
