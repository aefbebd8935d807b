"""Seeded simulations of windows whose earlier owner keeps those that have begun."""

from __future__ import annotations

from dataclasses import dataclass

from instant_scenario import InstantScenario


@dataclass(frozen=True)
class SmoothScenario(InstantScenario):
    """An `InstantScenario` with smooth moves."""

    strategy: str = "smooth"
