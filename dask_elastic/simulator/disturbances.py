"""Disturbances of a simulated job: plain values, so that a run can be repeated, shrunk, and kept as a test."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Literal

import numpy as np

from dask_elastic.executor import events
from dask_elastic.simulator.outages import Outages
from dask_elastic.vocab.errors import ElasticError, MoveRefused
from dask_elastic.vocab.identity import ExecutorId

if TYPE_CHECKING:
    from dask_elastic.simulator.world import World

BACK_AND_FORTH = 0.15
"""The share of draws, outages aside, that move one shard several times."""

OutageKind = Literal["death", "hang", "suspicion", "desertion"]


@dataclass(frozen=True)
class Move:
    """Before step `at`, an executor gets the command to move a shard to one of its tasks; numbers wrap around."""

    at: int
    executor: int
    shard: int
    task: int


@dataclass(frozen=True)
class Cores:
    """Before step `at`, an executor gets one core for each entry of `nodes`, and no others."""

    at: int
    executor: int
    nodes: tuple[int, ...]


@dataclass(frozen=True)
class Balance:
    """Before step `at`, an executor gets the command to balance its shards."""

    at: int
    executor: int


@dataclass(frozen=True)
class Flush:
    """Before step `at`, an executor's primary copy is brought up to date; if it is None, all remote tasks flush."""

    at: int
    executor: int | None


@dataclass(frozen=True)
class Outage:
    """A fault of a guest node before step `at`.

    Parameters
    ----------
    at : int
        The step.
    guest : int
        Which of the nodes that may be lost; wraps around.
    kind : {"death", "hang", "suspicion", "desertion"}
        The node dies; it stops for a while; it works, but homes give it up; or it ends its remote tasks by itself.
    noticed : tuple of int or None
        Steps until each home node gives it up; None if none does, which is only possible for a hang.
    lasts : int
        Steps until it can be used again.
    """

    at: int
    guest: int
    kind: OutageKind
    noticed: tuple[int, ...] | None
    lasts: int


@dataclass(frozen=True)
class MoveHome:
    """Before step `at`, the home of an executor begins to move to a node; numbers wrap around."""

    at: int
    executor: int
    node: int


@dataclass(frozen=True)
class MoveGroups:
    """Before step `at`, key groups of an operator begin to move to executors, `most` at a time; numbers wrap around."""

    at: int
    operator: int
    groups: tuple[int, ...]
    executors: tuple[int, ...]
    strategy: str
    most: int | None = None


Disturbance = Move | Cores | Balance | Flush | Outage | MoveHome | MoveGroups


@dataclass
class Disturber:
    """Applies a list of disturbances to a world.

    Parameters
    ----------
    world : World
        The simulated job.
    disturbances : sequence of Disturbance
        What to apply.

    Attributes
    ----------
    refused : int
        Commands that an executor refused.
    flush_requests : dict of int to (ExecutorId, int)
        Requested flushes by token: the executor, and how many of its rows were settled at the time of the request.
    """

    world: World
    disturbances: Sequence[Disturbance]
    refused: int = 0
    flush_requests: dict[int, tuple[ExecutorId, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.outages = Outages(self.world)
        self._executors = [*self.world.homes]
        for disturbance in self.disturbances:
            self.world.schedule.at(disturbance.at, partial(self._apply, disturbance))

    def _apply(self, disturbance: Disturbance) -> None:
        if isinstance(disturbance, Outage):
            self._begin_outage(disturbance)
        elif isinstance(disturbance, MoveGroups):
            self._move_groups(disturbance)
        elif not self.world.finished:
            self._command(disturbance)

    def _command(self, command: Move | Cores | Balance | Flush | MoveHome) -> None:
        if command.executor is None:
            self.world.flush_remote_tasks()
            return
        executor = self._executors[command.executor % len(self._executors)]
        match command:
            case Move(_, _, shard, task):
                tasks = [*self.world.homes[executor].executor.routes.tasks]
                shard %= self.world.spaces[executor.component].shards
                self._send(executor, events.MoveShard(shard, tasks[task % len(tasks)]))
            case Cores(_, _, nodes):
                cores = Counter(node % self.world.placement.nodes for node in nodes)
                self.world.set_cores(executor, cores, self._count_refusal)
            case Balance():
                self._send(executor, events.BalanceDue())
            case MoveHome(_, _, node):
                self._move_home(executor, node % self.world.placement.nodes)
            case Flush():
                token = len(self.flush_requests) + 1
                self.flush_requests[token] = executor, self.world.ledger.processed_rows(executor)
                self._send(executor, events.FlushDue(token))

    def _move_home(self, executor: ExecutorId, node: int) -> None:
        if not self.outages.is_sound(node):
            return
        try:
            self.world.moves.request(executor, node)
        except MoveRefused as error:
            self._count_refusal(error)

    def _move_groups(self, command: MoveGroups) -> None:
        operators = [*self.world.spaces]
        operator = operators[command.operator % len(operators)]
        table = self.world.groups.table(operator)
        moves = {
            group % table.groups: executor % len(table.homes)
            for group, executor in zip(command.groups, command.executors, strict=True)
        }
        moves = {group: executor for group, executor in moves.items() if table.owners[group] != executor}
        try:
            self.world.groups.request(operator, moves, command.strategy, command.most)
        except MoveRefused as error:
            self._count_refusal(error)

    def _send(self, executor: ExecutorId, event: events.Event) -> None:
        self.world.command(executor, event, self._count_refusal)

    def _count_refusal(self, error: ElasticError) -> None:
        self.refused += 1

    def _begin_outage(self, outage: Outage) -> None:
        guests = self.outages.guests
        if not guests:
            return
        node = guests[outage.guest % len(guests)]
        if not self.outages.can_fail(node):
            return
        self.outages.begin(node)
        if outage.kind == "death":
            self.outages.die(node)
        elif outage.kind == "hang":
            self.outages.hang(node)
        elif outage.kind == "desertion":
            self.outages.desert(node)
        schedule = self.world.schedule
        ends = schedule.steps + outage.lasts
        for position, home_node in enumerate(self.outages.home_nodes):
            if outage.noticed is not None:
                after = outage.noticed[position % len(outage.noticed)]
                schedule.at(min(schedule.steps + after, ends), partial(self.outages.give_up, home_node, node))
        schedule.at(ends, partial(self.outages.end, node))


def random_disturbances(random: np.random.Generator, count: int, steps: int, outages: float) -> list[Disturbance]:
    """Draw disturbances.

    Parameters
    ----------
    random : numpy.random.Generator
        The source of randomness.
    count : int
        How many disturbances.
    steps : int
        All of them begin before this step.
    outages : float
        The share of outages among them.

    Returns
    -------
    list of Disturbance
        In the order of their steps.
    """
    drawn: list[Disturbance] = []
    while len(drawn) < count:
        at = int(random.integers(1, steps))
        if random.random() < outages:
            drawn.append(_outage(random, at))
        elif random.random() < BACK_AND_FORTH:
            drawn += _back_and_forth(random, at)
        else:
            drawn.append(_command(random, at))
    return sorted(drawn[:count], key=lambda disturbance: disturbance.at)


def _back_and_forth(random: np.random.Generator, at: int) -> list[Move]:
    """Move one shard several times, so that it returns to a task that has owned it before."""
    executor, shard, task = int(random.integers(8)), int(random.integers(1 << 16)), int(random.integers(1 << 16))
    pauses = np.cumsum(random.integers(10, 80, 3)).tolist()
    return [Move(at + pause, executor, shard, task + turn) for turn, pause in enumerate([0, *pauses])]


def _outage(random: np.random.Generator, at: int) -> Outage:
    kinds: tuple[OutageKind, ...] = ("death", "hang", "suspicion", "desertion")
    kind = kinds[int(random.choice(len(kinds), p=(0.45, 0.3, 0.15, 0.1)))]
    noticed = tuple(random.integers(0, 60, 2).tolist())
    unnoticed = kind == "hang" and random.random() < 0.3
    lasts = int(random.integers(10, 150))
    return Outage(at, int(random.integers(4)), kind, None if unnoticed else noticed, lasts)


def _command(random: np.random.Generator, at: int) -> Disturbance:
    executor, kind = int(random.integers(8)), random.random()
    if kind < 0.4:
        return Move(at, executor, int(random.integers(1 << 16)), int(random.integers(1 << 16)))
    if kind < 0.65:
        return Cores(at, executor, tuple(random.integers(0, 1 << 16, int(random.integers(1, 4))).tolist()))
    if kind < 0.75:
        return Balance(at, executor)
    return Flush(at, executor if kind < 0.85 else None)
