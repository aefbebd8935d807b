"""What of a plan is carried out now: changes are held back that come too soon or move too much at a time.

Goal
    Nobody's cores change all the time, and the network is not filled with state, yet overload is answered at once.
Method
    A change of an executor whose cores have changed within `cooldown` waits, unless it is urgent. Urgent are changes
    that answer an overload or a target that is missed, that empty a node which retires, and those without which an
    urgent one would find no core. Then changes are admitted, urgent ones first, as long as the state that they move
    fits into `budget_bytes`; one that would not fit into any budget is let through where no other state moves. What is
    admitted never fills a node beyond its cores or beyond what is on it now.
Not done
    Waiting with a surplus: `dask_elastic.control.hysteresis`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dask_elastic.control.settings import ControlSettings
from dask_elastic.vocab.identity import ExecutorId

Cores = NDArray[np.int64]
Owner = tuple[str, int, ExecutorId]


@dataclass(frozen=True, eq=False)
class Step:
    """Other cores for one executor.

    Parameters
    ----------
    owner : tuple of str, int and ExecutorId
        Job, generation and executor.
    before, after : array of int
        Cores on each node.
    moved_bytes : float
        State that leaves its node.
    urgent : bool
        Whether it cannot wait.
    """

    owner: Owner
    before: Cores
    after: Cores
    moved_bytes: float
    urgent: bool


@dataclass(frozen=True, eq=False)
class Verdict:
    """What becomes of the steps of a plan.

    Parameters
    ----------
    admitted : tuple of Step
        To be carried out in this order: a core is given up before somebody takes it, wherever that can be.
    held : mapping of tuple to str
        Owners of the steps that are held back, and why.
    """

    admitted: tuple[Step, ...]
    held: Mapping[Owner, str]


class Guard:
    """Vets plans; remembers when each executor's cores have changed.

    Parameters
    ----------
    settings : ControlSettings
        `cooldown` and `budget_bytes` are used.
    """

    def __init__(self, settings: ControlSettings):
        self._settings = settings
        self._changed: dict[Owner, float] = {}

    def vet(self, now: float, steps: Sequence[Step], free: Cores) -> Verdict:
        """Return which steps are carried out now.

        Parameters
        ----------
        now : float
            When, in seconds.
        steps : sequence of Step
            The plan: all of it together fits on the nodes.
        free : array of int
            Cores of each node that nobody has now; negative where it has to give some up.

        Returns
        -------
        Verdict
            The steps to carry out; they count as carried out.
        """
        self._changed = {owner: at for owner, at in self._changed.items() if now - at < self._settings.cooldown}
        held = {step.owner: self._cooling(now, step) for step in steps if self._too_soon(step)}
        chosen = [step for step in steps if step.owner not in held]
        waiting = [step for step in steps if step.owner in held]
        chosen += _givers([step for step in chosen if step.urgent], chosen, waiting, free)
        chosen = self._within_budget(chosen, held)
        chosen = _fitting(chosen, free, held)
        for step in chosen:
            held.pop(step.owner, None)
            self._changed[step.owner] = now
        return Verdict(tuple(_in_order(chosen, free)), held)

    def _too_soon(self, step: Step) -> bool:
        return not step.urgent and step.owner in self._changed

    def _cooling(self, now: float, step: Step) -> str:
        ago = now - self._changed[step.owner]
        return f"its cores have changed {ago:.1f} s ago, the cooldown is {self._settings.cooldown:g} s"

    def _within_budget(self, steps: list[Step], held: dict[Owner, str]) -> list[Step]:
        """Return the steps whose state fits; urgent ones come first, and of these the ones that move least."""
        budget, moved, chosen = self._settings.budget_bytes, 0.0, []
        for step in sorted(steps, key=lambda step: (not step.urgent, step.moved_bytes, step.owner)):
            if moved + step.moved_bytes <= budget or not moved:
                chosen.append(step)
                moved += step.moved_bytes
            else:
                mebi = [f"{amount / 2**20:.1f} MiB" for amount in (step.moved_bytes, moved, budget)]
                held[step.owner] = f"it moves {mebi[0]}, and {mebi[1]} of the {mebi[2]} for one period are used"
        return chosen


def _givers(urgent: list[Step], chosen: list[Step], waiting: list[Step], free: Cores) -> list[Step]:
    """Return those of the steps that wait which give up cores that urgent ones take."""
    left = free - _taken(chosen, len(free))
    wanted = np.zeros(len(free), dtype=np.bool_)
    for step in urgent:
        wanted |= step.after > step.before
    found = []
    for step in waiting:
        gives = (step.after < step.before) & wanted & (left < 0)
        if gives.any():
            found.append(step)
            left = left - (step.after - step.before)
    return found


def _fitting(steps: list[Step], free: Cores, held: dict[Owner, str]) -> list[Step]:
    """Drop steps that take cores which others do not give up now; those that matter least first."""
    chosen, taken = list(steps), _taken(steps, len(free))
    while True:
        crowded = np.flatnonzero((taken > np.maximum(free, 0)) & (taken > 0))
        if not crowded.size:
            return chosen
        node = int(crowded[0])
        taking = [step for step in chosen if step.after[node] > step.before[node]]
        last = max(taking, key=lambda step: (not step.urgent, step.moved_bytes, step.owner))
        chosen.remove(last)
        taken -= last.after - last.before
        held[last.owner] = "it takes cores that others do not give up yet"


def _in_order(steps: list[Step], free: Cores) -> list[Step]:
    """Order steps such that cores are free when they are taken; where none can be first, the one that gives most is."""
    if not steps:
        return []
    steps = sorted(steps, key=lambda step: step.owner)
    changes = np.stack([step.after - step.before for step in steps])
    more, waiting, left, ordered = changes.sum(axis=1), np.ones(len(steps), dtype=np.bool_), free.copy(), []
    for _ in steps:
        ready = waiting & (changes <= np.maximum(left, 0)).all(axis=1)
        options = np.flatnonzero(ready if ready.any() else waiting)
        first = int(options[more[options].argmin()])
        waiting[first] = False
        left -= changes[first]
        ordered.append(steps[first])
    return ordered


def _taken(steps: Sequence[Step], nodes: int) -> Cores:
    total = np.zeros(nodes, dtype=np.int64)
    for step in steps:
        total += step.after - step.before
    return total
