"""A paced source and one executor with a core at home and one on another node, on a virtual clock."""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from dask_elastic.executor import events
from dask_elastic.executor import instructions as do
from dask_elastic.executor.executor import ElasticExecutor
from dask_elastic.executor.limits import ExecutorLimits
from dask_elastic.executor.task_queue import LabelItem, Work
from dask_elastic.routing.keyspace import KeySpace
from dask_elastic.vocab import messages as m
from dask_elastic.vocab.batch import Batch
from dask_elastic.vocab.identity import ExecutorId

SOURCE, EXECUTOR = ExecutorId("source", 0), ExecutorId("compute", 0)
HOME, OTHER = 0, 1
SHARDS = 32
ARRIVAL_SECONDS = 0.01
BALANCE_SECONDS = 0.5
HOP = 0.001
LIGHT = 0.3


def steady(value: float) -> Callable[[float], float]:
    """Return a function of time with one value."""
    return lambda now: value


def step(at: float, before: float, after: float) -> Callable[[float], float]:
    """Return a function of time that changes once."""
    return lambda now: before if now < at else after


@dataclass
class PacedJob:
    """Rows arrive every 10 ms, whatever waits; each task has a thread of its own.

    Parameters
    ----------
    rate : callable
        Rows per second, given the time.
    each : callable
        Seconds that a row takes, given the time.
    stalls : dict of float to float
        By how many seconds a batch at home takes longer, the first one that begins after a time.
    light : float
        Busy cores up to which the load is light.
    first : dict of int to int
        Cores at the start; after half a second there is one on both nodes.
    phase : float
        When the executor balances first.
    seed : int
        Determines the rows and their keys.
    """

    rate: Callable[[float], float]
    each: Callable[[float], float]
    stalls: dict[float, float] = field(default_factory=dict)
    light: float = LIGHT
    first: dict[int, int] = field(default_factory=lambda: {HOME: 1})
    phase: float = 0.25
    seed: int = 0
    now: float = 0.0
    done: int = 0

    def __post_init__(self):
        self.random = np.random.default_rng(self.seed)
        limits = ExecutorLimits(light_load=self.light)
        space = KeySpace(1, SHARDS)
        self.executor = ElasticExecutor(EXECUTOR, space, HOME, self.first, [SOURCE], limits=limits)
        self.sent = 0
        self._agenda: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._inbox: dict[int, deque[m.ToRemote]] = {}
        self._node: dict[int, int] = {}
        self._busy: set[int] = set()
        self._waiting_stalls = deque(sorted(self.stalls.items()))
        self._carry_out(self.executor.start())
        self._at(ARRIVAL_SECONDS, self._arrive)
        self._at(self.phase, self._balance)
        self._at(0.5, lambda: self.handle(events.SetCores({HOME: 1, OTHER: 1})))

    @property
    def away(self) -> int:
        """Shards whose task is not at home."""
        return sum(self._node[task] != HOME for task in self.executor.routes.table.owner.tolist())

    @property
    def moves(self) -> int:
        """Finished moves."""
        return self.executor.moves.finished

    def run(self, until: float) -> PacedJob:
        """Run up to a time."""
        while self._agenda[0][0] <= until:
            self.now, _, act = heapq.heappop(self._agenda)
            act()
        self.now = until
        return self

    def first_away(self, since: float, until: float) -> float | None:
        """Run until a shard is away; returns the seconds since a time."""
        while self.now < until:
            self.run(self.now + ARRIVAL_SECONDS)
            if self.away:
                return self.now - since
        return None

    def handle(self, event: events.Event) -> None:
        """Let the executor handle an event."""
        self._carry_out(self.executor.handle(event, self.now))

    def _at(self, after: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._agenda, (self.now + after, next(self._numbers), act))

    def _balance(self) -> None:
        self.handle(events.BalanceDue())
        self._at(BALANCE_SECONDS, self._balance)

    def _arrive(self) -> None:
        self._at(ARRIVAL_SECONDS, self._arrive)
        rows = int(self.random.poisson(self.rate(self.now) * ARRIVAL_SECONDS))
        if not rows:
            return
        self.sent += rows
        hashes = self.random.integers(0, 2**63, rows).astype(np.uint64)
        batch = Batch(pa.record_batch({"key": hashes.view(np.int64)}), hashes, self.now)
        self._carry_out(self.executor.accept(self.executor.split(batch), SOURCE, batch, batch.nbytes, self.now))

    def _carry_out(self, instructions: list[do.Instruction]) -> None:
        for instruction in instructions:
            match instruction:
                case do.Wake(task) | do.Run(task):
                    self._feed(task)
                case do.StartTask(task, node, _):
                    self._node[task], self._inbox[task] = node, deque()
                    self._feed(task)
                case do.InstallState(shard, task, _, _):
                    installed = events.StateInstalled(shard, task)
                    self._at(HOP, lambda event=installed: self.handle(event))
                case do.RequestFlush(task, _, token, shard):
                    self._tell(m.FlushRequest(task, token, shard))

    def _feed(self, task: int) -> None:
        remote = self._node[task] != HOME
        while (remote or task not in self._busy) and (taken := self.executor.take(task, self.now)) is not None:
            number, item = taken
            if isinstance(item, Work):
                if remote:
                    self._tell(m.SubBatch(task, number, item.batch()))
                else:
                    self._work(task, number, item.rows)
            elif isinstance(item, LabelItem) and remote:
                self._tell(m.Label(task, item.shard, item.stays))
            elif isinstance(item, LabelItem):
                self.handle(events.LabelBack(task, item.shard))
            else:
                raise AssertionError(f"task {task} got {item}: no core is taken away here")

    def _work(self, task: int, number: int, rows: int) -> None:
        seconds = rows * self.each(self.now)
        if self._node[task] == HOME and self._waiting_stalls and self._waiting_stalls[0][0] <= self.now:
            seconds += self._waiting_stalls.popleft()[1]
        self._busy.add(task)
        self._at(seconds, lambda: self._end(task, number, rows, seconds))

    def _end(self, task: int, number: int, rows: int, seconds: float) -> None:
        self._busy.discard(task)
        self.done += rows
        if self._node[task] == HOME:
            self._carry_out(self.executor.done(task, number, seconds, self.now))
            self._feed(task)
        else:
            self._return(m.Done(task, number, seconds, 0.0))
            self._go_on(task)

    def _tell(self, message: m.ToRemote) -> None:
        def arrive() -> None:
            self._inbox[message.task].append(message)
            self._go_on(message.task)

        self._at(HOP, arrive)

    def _go_on(self, task: int) -> None:
        while self._inbox[task] and task not in self._busy:
            match self._inbox[task].popleft():
                case m.SubBatch(_, number, batch, _):
                    self._work(task, number, batch.rows.num_rows)
                case m.Label(_, shard, _):
                    self._return(m.LabelReturned(task, shard, self._through(task), None))
                case m.FlushRequest(_, token, shard):
                    self._return(m.Flush(task, self._through(task), None, token, shard))

    def _through(self, task: int) -> int:
        known = self.executor.routes.tasks[task]
        return min(known.in_flight, default=known.sent) - 1

    def _return(self, message: m.Done | m.Flush | m.LabelReturned) -> None:
        self._at(HOP, lambda: self._carry_out(self.executor.take_back(message, self.now)))
