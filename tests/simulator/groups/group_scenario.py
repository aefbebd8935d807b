"""Seeded simulations in which key groups move between executors, under both strategies."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
from checkpointed_scenario import CheckpointedScenario
from followed_job import SOURCES
from scenario import Scenario, Simulation
from timed_scenario import COMPUTES, ORIGINS, TimedScenario
from timer_job import expected
from timer_scenario import TimerScenario, TimerSimulation

from dask_elastic.migration.group_move import PROGRESSIVE, SYNCHRONISED
from dask_elastic.simulator import Disturber, MoveGroups, Placement, World, WorldOptions

NODES = 3
MOVES = 8
"""Requests to move groups; one that comes during another move is refused."""

STEPS = 450


def placed(random: np.random.Generator, sources: dict[str, int], computes: tuple[str, ...]) -> Placement:
    """Return a placement with executors of one core each, on nodes that may host several."""
    instances = {**sources, **{name: int(random.integers(2, 5)) for name in computes}}
    homes = {name: tuple(random.integers(0, NODES, number).tolist()) for name, number in instances.items()}
    cores = {name: tuple({node: 1} for node in homes[name]) for name in computes}
    return Placement(NODES, homes, cores)


def drawn_moves(random: np.random.Generator, count: int = MOVES, steps: int = STEPS) -> tuple[MoveGroups, ...]:
    """Draw moves of one group or of many, most of them progressive."""
    moves = []
    for at in sorted(random.integers(1, steps, count).tolist()):
        size = int(random.integers(1, 6))
        groups, executors = (tuple(random.integers(0, 64, size).tolist()) for _ in "ab")
        strategy = SYNCHRONISED if random.random() < 0.35 else PROGRESSIVE
        most = int(random.integers(1, 3)) if strategy == PROGRESSIVE and random.random() < 0.5 else None
        moves.append(MoveGroups(at, int(random.integers(2)), groups, executors, strategy, most))
    return tuple(moves)


class WithGroups(Scenario):
    """Lets the groups of a scenario's operators move; nothing else is disturbed."""

    def drawn(self) -> Scenario:
        if self.disturbances is not None:
            return self
        return replace(self, disturbances=drawn_moves(np.random.default_rng([self.seed, 8])))

    def adjusted(self, options: WorldOptions) -> WorldOptions:
        return replace(options, resource_centric=True)


class FollowedSimulation(Simulation):
    """Compares the outputs of each sink: a key's outputs reach several, which do not wait for each other."""

    def last_outputs(self) -> dict[object, dict[str, object]]:
        last: dict[object, dict[str, object]] = {}
        for sink in self.world.sinks.values():
            here: dict[object, int] = {}
            for _, batch in sorted(sink.received, key=lambda entry: entry[0]):
                for row in batch.to_pylist():
                    assert here.get(row["bucket"], 0) < row["count"], f"an output overtook another: {row}"
                    here[row["bucket"]] = row["count"]
                    if row["bucket"] not in last or last[row["bucket"]]["count"] < row["count"]:
                        last[row["bucket"]] = row
        return last


class _Followed(WithGroups):
    def _placement(self, random: np.random.Generator) -> Placement:
        return placed(random, {"numbers": SOURCES}, ("per_key", "per_bucket"))

    def _simulation(self, world: World, batches: list[list[pa.RecordBatch]], disturber: Disturber) -> Simulation:
        return FollowedSimulation(world, batches, disturber)


@dataclass(frozen=True)
class GroupScenario(_Followed, Scenario):
    """The followed job."""


@dataclass(frozen=True)
class CheckpointedGroupScenario(_Followed, CheckpointedScenario):
    """The followed job with checkpoints, from each of which another simulation continues."""

    @staticmethod
    def _with_other_cores(placement: Placement, random: np.random.Generator) -> Placement:
        return placement


@dataclass(frozen=True)
class TimedGroupScenario(WithGroups, TimedScenario):
    """The job with event time."""

    def _placement(self, random: np.random.Generator) -> Placement:
        return placed(random, dict(Counter(ORIGINS)), COMPUTES)


class GroupTimerSimulation(TimerSimulation):
    """Compares what each sink gets with a part of what is expected, and all together with the whole."""

    def check(self) -> None:
        whole = expected(self.batches)
        emitted: dict[str, list[tuple[int, str, int]]] = defaultdict(list)
        polled: dict[str, list[int]] = defaultdict(list)
        for sink in self.world.sinks.values():
            here: dict[str, list[tuple[int, str, int]]] = defaultdict(list)
            for _, rows in sorted(sink.received, key=lambda entry: entry[0]):
                times = rows["due"].cast(pa.int64()).to_pylist()
                for time, key, timer, total in zip(
                    times, *(rows[n].to_pylist() for n in ("key", "timer", "sum")), strict=True
                ):
                    if timer == "poll":
                        polled[key].append(total)
                    else:
                        here[key].append((time, timer, total))
            for key, found in here.items():
                left = iter(whole.get(key, ()))
                assert all(one in left for one in found), f"the timers of {key} fired in another order: {found}"
                emitted[key] += found
        assert {key: sorted(rows) for key, rows in emitted.items()} == {k: sorted(v) for k, v in whole.items() if v}
        for key, totals in polled.items():
            assert sorted(totals) == [*range(1, len(totals) + 1)], f"{key} was polled twice or never"
        self.check_other()


@dataclass(frozen=True)
class TimerGroupScenario(WithGroups, TimerScenario):
    """The job with timers and checkpoints."""

    def _placement(self, random: np.random.Generator) -> Placement:
        return placed(random, {"steps": 1}, ("per_key",))

    def simulated(
        self, world: World, batches: list[pa.RecordBatch], disturber: Disturber, shards: int
    ) -> TimerSimulation:
        return GroupTimerSimulation(world, batches, disturber, shards, self.place)


KINDS = (GroupScenario, CheckpointedGroupScenario, TimedGroupScenario, TimerGroupScenario)


def first_failure(seeds: range) -> Exception | None:
    """Return the error of the first seed that fails in any kind of scenario; None if all pass."""
    for seed in seeds:
        for kind in KINDS:
            if error := kind(seed, outages=0.0, pauses=0.05 if seed % 4 < 2 else 0.0).failure():
                return error
    return None
