"""Crashes of a simulated job that restarts: plain values, so that a run can be repeated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from dask_elastic.simulator.durability.storage import Moment

REQUESTS = (
    "next_generation", "newest_from", "record_base", "newest_generation", "state", "prepare", "acknowledge", "publish",
    "told", "commit", "delete",
)  # fmt: skip
"""What a crash can come before or after: requests to storage, acknowledgements, and what sinks are told."""

Kind = Literal["home", "scheduler", "second scheduler"]


@dataclass(frozen=True)
class Crash:
    """The loss of a home or of the scheduler, at a step or at a request.

    Parameters
    ----------
    kind : {"home", "scheduler", "second scheduler"}
        A home node is lost, so that the coordinator restarts the job; the scheduler is lost, and another one resumes
        the job; or another one resumes the job although the first still runs.
    at : int
        At which step, or at which request of its kind, counted over the whole run.
    request : str
        One of `REQUESTS`; "" for a step.
    moment : {"before", "after"}
        Before the effect of the request, or after it and before its answer.
    survive : float
        The share of the nodes that go on working for the old generation, most of them after a while.
    """

    kind: Kind
    at: int
    request: str = ""
    moment: Moment = "before"
    survive: float = 0.0


def random_crashes(random: np.random.Generator, count: int, steps: int) -> list[Crash]:
    """Draw crashes.

    Parameters
    ----------
    random : numpy.random.Generator
        The source of randomness.
    count : int
        How many.
    steps : int
        Those that come at a step come before this one.
    """
    return [_crash(random, steps) for _ in range(count)]


def _crash(random: np.random.Generator, steps: int) -> Crash:
    kinds: tuple[Kind, ...] = ("home", "scheduler", "second scheduler")
    kind = kinds[int(random.choice(3, p=(0.5, 0.3, 0.2)))]
    survive = float(random.choice([0.0, 0.5, 1.0]))
    if random.random() < 0.3:
        return Crash(kind, int(random.integers(1, steps)), survive=survive)
    request = REQUESTS[int(random.integers(len(REQUESTS)))]
    moment: Moment = "before" if random.random() < 0.5 else "after"
    return Crash(kind, int(random.integers(1, 5)), request, moment, survive)
