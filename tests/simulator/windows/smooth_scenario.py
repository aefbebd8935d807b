"""Seeded simulations of windows whose earlier owner keeps those that have begun, and of moves that are chosen."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

import numpy as np
from instant_scenario import InstantScenario
from scenario import STEPS

from dask_elastic.executor.moving import move_choice
from dask_elastic.executor.moving.move_choice import MoveChoice
from dask_elastic.simulator import World
from dask_elastic.simulator.disturbances import Balance, Cores, Flush, Move, Outage

MOVES = 40


@dataclass(frozen=True)
class SmoothScenario(InstantScenario):
    """An `InstantScenario` with many smooth moves, most of them without checkpoints, for which sources leave early."""

    strategy: str = "smooth"
    cuts: bool | None = None

    def drawn(self) -> SmoothScenario:
        found = super().drawn()
        if self.disturbances is not None:
            return found
        random = np.random.default_rng([self.seed, 5])
        moves = [
            Move(at, *(int(number) for number in random.integers(0, 1 << 16, 3)))
            for at in random.integers(1, STEPS, MOVES).tolist()
        ]
        flushes = [Flush(at, int(random.integers(8))) for at in random.integers(1, STEPS, MOVES // 2).tolist()]
        every = [*found.disturbances, *moves, *flushes]
        return replace(found, disturbances=sorted(every, key=lambda disturbance: disturbance.at))

    def _take_checkpoints(self, world: World) -> None:
        if self.seed % 3 == 0 if self.cuts is None else self.cuts:
            super()._take_checkpoints(world)


FOUND = (
    SmoothScenario(
        seed=5,
        outages=0.0,
        disturbances=[
            Cores(at=13, executor=4, nodes=(50097, 38348, 43428)),
            Cores(at=17, executor=7, nodes=(3873, 10367)),
            Balance(at=28, executor=5),
            Flush(at=60, executor=6),
            Move(at=148, executor=6, shard=10074, task=33650),
            Move(at=192, executor=7, shard=21139, task=2411),
            Move(at=206, executor=2, shard=62334, task=14280),
            Move(at=272, executor=2, shard=62334, task=14281),
        ],
        cuts=True,
    ),
    SmoothScenario(
        seed=50,
        outages=0.25,
        disturbances=[
            Move(at=26, executor=6, shard=50797, task=8321),
            Flush(at=89, executor=3),
            Cores(at=124, executor=7, nodes=(33555, 55765, 29741)),
            Flush(at=138, executor=5),
            Move(at=164, executor=3, shard=36222, task=65381),
            Outage(at=189, guest=0, kind="hang", noticed=None, lasts=38),
            Move(at=193, executor=6, shard=19804, task=62168),
            Move(at=341, executor=6, shard=19804, task=62171),
            Move(at=375, executor=0, shard=18144, task=6064),
            Outage(at=389, guest=3, kind="hang", noticed=(44, 33), lasts=109),
            Outage(at=391, guest=0, kind="death", noticed=(31, 48), lasts=78),
        ],
        cuts=True,
    ),
    SmoothScenario(
        seed=156,
        outages=0.25,
        disturbances=[
            Move(at=164, executor=3, shard=8802, task=55907),
            Outage(at=210, guest=2, kind="death", noticed=(58, 18), lasts=68),
            Move(at=263, executor=2, shard=27012, task=4668),
            Move(at=375, executor=6, shard=1279, task=15137),
            Outage(at=397, guest=1, kind="death", noticed=(33, 5), lasts=67),
        ],
        cuts=True,
    ),
    SmoothScenario(seed=18, outages=0.25),
    SmoothScenario(seed=1005, outages=0.0, cuts=True),
)
"""Scenarios that have failed: later rows overtook records that had waited for the source; what had waited for a source
that was lost came before what it had taken; a shard whose source and target were lost had a second move; a source
stayed although a checkpoint had become due while its state was set aside, or while its target was opened."""


@dataclass(frozen=True)
class AutoScenario(InstantScenario):
    """An `InstantScenario` in which each move has another strategy."""

    strategy: str = "auto"


OVERTAKEN = AutoScenario(
    seed=261,
    outages=0.25,
    disturbances=[
        Move(at=10, executor=4, shard=3871, task=30613),
        Outage(at=24, guest=1, kind="death", noticed=(10, 46), lasts=58),
        Move(at=36, executor=2, shard=17273, task=58706),
        Move(at=72, executor=4, shard=3871, task=30614),
        Outage(at=238, guest=2, kind="death", noticed=(52, 13), lasts=27),
    ],
    batches=3,
)
"""With `chosen_in_turn`, a source that leaves early is lost with a record that it had taken; rows arrive behind it."""


def chosen_in_turn(monkeypatch) -> Counter[str]:
    """Let each strategy be the cheapest one in turn; returns a counter of the chosen ones."""
    chosen: Counter[str] = Counter()
    real_costs, real_init, real_work = move_choice.strategy_costs, MoveChoice.__init__, MoveChoice.work_of_moves

    def costs(measures):
        found = sorted(real_costs(measures), key=lambda cost: cost.strategy)
        first = found[chosen.total() % len(found)]
        chosen[first.strategy] += 1
        return [replace(first, waiting=0.0), *(cost for cost in found if cost is not first)]

    def measured(self, strategy, shared):
        real_init(self, strategy, shared)
        self.shard_bytes = np.full(64, 1_000)

    def work_of_moves(self, work, work_beside):
        self.shard_bytes = np.full(len(work), 1_000)
        return real_work(self, work, work_beside)

    monkeypatch.setattr(MoveChoice, "work_of_moves", work_of_moves)
    monkeypatch.setattr(move_choice, "strategy_costs", costs)
    monkeypatch.setattr(MoveChoice, "__init__", measured)
    return chosen
