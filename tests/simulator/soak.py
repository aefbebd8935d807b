"""Runs other seeds than the test suite, of all kinds of simulated jobs, for a given time: ``make soak SECONDS=3600``.

Ends at the first seed that fails, and prints its error and a shrunk scenario.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
FOLDERS = ("expiry", "fused", "groups", "homes", "joins", "light", "windows")
sys.path[1:1] = [str(HERE / name) for name in FOLDERS]

import durable_group_scenario  # noqa: E402  imported by path
import durable_home_scenario  # noqa: E402
import group_scenario  # noqa: E402
import home_scenario  # noqa: E402
import merged_group_scenario  # noqa: E402
import merged_scenario  # noqa: E402
import test_homes_of_merged_kinds as merged_homes  # noqa: E402
import test_simulated_updates as updates  # noqa: E402
import window_job  # noqa: E402
from checkpointed_scenario import CheckpointedScenario  # noqa: E402
from consolidate_scenario import ConsolidateScenario  # noqa: E402
from corrected_scenario import CorrectedScenario, LateScenario  # noqa: E402
from count_scenario import CountScenario  # noqa: E402
from durable_scenario import DurableScenario  # noqa: E402
from expiry_scenario import ExpiryScenario  # noqa: E402
from function_scenario import FunctionScenario  # noqa: E402
from fused_scenario import FusedDurableScenario, FusedScenario  # noqa: E402
from instant_scenario import InstantScenario  # noqa: E402
from join_scenario import JoinScenario  # noqa: E402
from leased_job import LeasedJob  # noqa: E402
from racing import Race  # noqa: E402
from scenario import Scenario  # noqa: E402
from session_scenario import SessionScenario  # noqa: E402
from sharing_scenario import SharingScenario  # noqa: E402
from smooth_scenario import AutoScenario, SmoothScenario, chosen_in_turn  # noqa: E402
from test_durability import SinklessScenario  # noqa: E402
from test_gathering_under_outages import GatheringScenario  # noqa: E402
from test_light_loads_under_outages import LightScenario  # noqa: E402
from timed_scenario import TimedScenario  # noqa: E402
from timer_scenario import TimerScenario  # noqa: E402
from window_scenario import WindowScenario  # noqa: E402

BEYOND_THE_SUITE = 1_000_000

WITH_OUTAGES = (
    Scenario,
    CheckpointedScenario,
    TimedScenario,
    TimerScenario,
    ExpiryScenario,
    GatheringScenario,
    LightScenario,
    FusedScenario,
    JoinScenario,
    WindowScenario,
    SessionScenario,
    CountScenario,
    FunctionScenario,
    ConsolidateScenario,
    SharingScenario,
    InstantScenario,
    SmoothScenario,
    merged_scenario.MergedScenario,
    merged_scenario.MergedInstantScenario,
    merged_scenario.MergedSmoothScenario,
    merged_scenario.MergedSharingScenario,
    *home_scenario.KINDS,
    merged_homes.FusedHomes,
    merged_homes.SharingHomes,
    merged_homes.InstantHomes,
    merged_homes.JoinHomes,
)
"""Each fourth seed has no outages: then every node may be a home, and more moves complete."""

GROUPS = (*group_scenario.KINDS, *merged_group_scenario.MERGED_KINDS, merged_group_scenario.UpdatedGroups)
"""Their executors are lost in durable jobs only."""

DURABLE = (
    DurableScenario,
    FusedDurableScenario,
    SinklessScenario,
    durable_home_scenario.DurableHomeScenario,
    durable_group_scenario.DurableGroupScenario,
)

PLACES = (TimerScenario, ExpiryScenario, WindowScenario, SessionScenario, CountScenario, CorrectedScenario)
"""Kinds whose compute may be in the task of another one."""


@contextmanager
def few_keys(number: int) -> Iterator[None]:
    """Let several rows of a key be of one instance."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(window_job, "KEYS", number)
        yield


@contextmanager
def strategies_in_turn() -> Iterator[None]:
    """Let moves choose each strategy in turn."""
    with pytest.MonkeyPatch.context() as patch:
        chosen_in_turn(patch)
        yield


def outages_of(seed: int) -> float:
    """Return how likely outages are."""
    return 0.0 if seed % 4 == 0 else 0.25


def with_outages(kind: Any, seed: int, around: Callable[[], Any] = nullcontext) -> Any:
    """Simulate a job whose guests are lost now and then."""
    pauses = 0.02 if seed % 5 == 0 else 0.0
    with around():
        return kind(seed, outages=outages_of(seed), pauses=pauses).check()


def with_place(kind: Any, seed: int, around: Callable[[], Any] = nullcontext) -> Any:
    """Simulate a job whose compute is in the task of another one."""
    with around():
        return kind(seed, outages=outages_of(seed), place="behind" if seed % 2 else "in front").check()


def without_outages(kind: Any, seed: int) -> Any:
    """Simulate a job that loses nothing."""
    return kind(seed, outages=0.0, pauses=0.05 if seed % 4 < 2 else 0.0).check()


def simulations() -> dict[str, Callable[[int], Any]]:
    """Return how a seed of each kind is simulated."""
    found: dict[str, Callable[[int], Any]] = {kind.__name__: partial(with_outages, kind) for kind in WITH_OUTAGES}
    found |= {f"{kind.__name__} in another task": partial(with_place, kind) for kind in PLACES[:-1]}
    found |= {kind.__name__: partial(without_outages, kind) for kind in GROUPS}
    found |= {kind.__name__: lambda seed, kind=kind: kind(seed).check() for kind in DURABLE}
    few = {CorrectedScenario: 2, LateScenario: 2, updates.UpdatedScenario: 3, updates.ChangingScenario: 3}
    for kind, number in few.items():
        found[kind.__name__] = partial(with_outages, kind, around=partial(few_keys, number))
    found["CorrectedScenario in another task"] = partial(with_place, CorrectedScenario, around=partial(few_keys, 2))
    found["AutoScenario"] = partial(with_outages, AutoScenario, around=strategies_in_turn)
    found["InstantScenario, disruptive"] = lambda seed: InstantScenario(seed, 0.25, strategy="disruptive").check()
    found["Race"] = lambda seed: Race(seed, outages=outages_of(seed)).check()
    found["LeasedJob"] = lambda seed: LeasedJob(seed).run()
    return found


def main() -> None:
    """Run seeds until the time is over."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--first", type=int, default=BEYOND_THE_SUITE, help="the first seed")
    parser.add_argument("--kinds", nargs="+", help="all if left out")
    given = parser.parse_args()
    kinds = simulations()
    if given.kinds:
        kinds = {name: kinds[name] for name in given.kinds}
    deadline, began = time.monotonic() + given.seconds, time.monotonic()
    passed: Counter[str] = Counter()
    seed = given.first
    while time.monotonic() < deadline:
        for name, simulate in kinds.items():
            try:
                simulate(seed)
            except Exception as error:
                error.add_note(f"{name}, seed {seed}")
                raise
            passed[name] += 1
        seed += 1
        if (seed - given.first) % 20 == 0:
            print(f"{time.monotonic() - began:.0f} s: {seed - given.first} seeds of {len(kinds)} kinds", flush=True)
    print(f"{passed.total()} simulations of {len(kinds)} kinds, seeds {given.first} to {seed - 1}, none failed")


if __name__ == "__main__":
    main()
