"""Cores of one executor: starts and drains tasks, and balances the shards over them."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping

import numpy as np
import numpy.typing as npt
from numpy.typing import ArrayLike

from dask_elastic.executor.instructions import Instruction, StartTask, Wake
from dask_elastic.executor.measures import AHEAD_SECONDS
from dask_elastic.executor.moves import Moves
from dask_elastic.executor.routes import Routes
from dask_elastic.executor.task import PENDING_BYTES, Task
from dask_elastic.executor.task_queue import StopItem
from dask_elastic.executor.task_status import TaskEvent, TaskStatus
from dask_elastic.migration.move_work import MOST_PAUSE, MOVE_SECONDS
from dask_elastic.planning.balance import balance
from dask_elastic.planning.gathering import Gathering, Saturation
from dask_elastic.planning.light_load import LightLoad
from dask_elastic.vocab.errors import PlanningError

Floats = npt.NDArray[np.float64]

MOVES_AT_ONCE = 4
"""Moves that an executor has in progress when it begins another by itself, at most: enough to hide the latency to a
remote node, few enough that no shard is paused long before its state can be transferred."""

LIGHT_WORK = 0.5 * AHEAD_SECONDS
"""Seconds of work up to which a task gains little by being relieved: it is idle half of the time."""

MOST_STEADY = 60.0
"""Seconds for which loads are expected to stay as they are, at most."""


class Cores:
    """The tasks of an executor; the caller holds the executor's lock.

    Parameters
    ----------
    routes : Routes
        Table, tasks and queues.
    moves : Moves
        Moves that have not ended.
    home : int
        The executor's home node.
    threshold : float
        Balancing starts above this ratio of the largest to the mean task load (Elasticutor, section 3.1: 1.2).
    pending_bytes : int
        What bounds the pending queue of a remote task.
    light_load : float
        Busy cores up to which tasks on other nodes get no shards, as long as there is a task at home.
    gathering : Gathering, optional
        Decides over how many tasks of a node the shards are spread; by default over all.

    Attributes
    ----------
    light : LightLoad
        Whether the shards belong at home.
    gathering : Gathering or None
        Over how many tasks of a node the shards are spread; None for all.
    lost_nodes : set of int
        Nodes that are lost and have not returned.
    steady_seconds : callable
        Returns for how long the shares of the shards have stayed as they are, at a time.
    """

    def __init__(
        self,
        routes: Routes,
        moves: Moves,
        home: int,
        threshold: float = 1.2,
        pending_bytes: int = PENDING_BYTES,
        light_load: float = 0.0,
        gathering: Gathering | None = None,
    ):
        self.routes = routes
        self.moves = moves
        self.home = home
        self.threshold = threshold
        self.pending_bytes = pending_bytes
        self.light = LightLoad(light_load, at_home=all(task.at_home for task in routes.tasks.values()))
        self.gathering = gathering
        self.lost_nodes: set[int] = set()
        self.steady_seconds: Callable[[float], float] = lambda now: 0.0
        self._next = max(routes.tasks) + 1
        self._planned: deque[tuple[int, int]] = deque()
        self._filling = False
        # Active tasks that got no shards when the loads were last balanced.
        self._held: frozenset[int] = frozenset()
        # Shards that were moved by a command, and to which task.
        self._commanded: dict[int, int] = {}

    @property
    def active(self) -> list[Task]:
        """The active tasks, by number: those that are not draining."""
        return sorted((t for t in self.routes.tasks.values() if t.status is TaskStatus.ACTIVE), key=lambda t: t.number)

    @property
    def takers(self) -> list[Task]:
        """The active tasks that may get shards: only those at home, if there are any, while the load is light.

        Rows of a remote task cross the network twice. That costs more than it relieves the home of, if these rows keep
        a small part of a core busy. Of the tasks of a node some may be enough, see `Gathering`: those that will have
        the most shards.
        """
        active = self.active
        takers = [task for task in active if task.at_home] or active if self.light.at_home else active
        most = None if self.gathering is None else self.gathering.most
        if most is None or len(takers) <= most:
            return takers
        shards = Counter(self._owners_to_be().tolist())
        places: Counter[int] = Counter()
        chosen = set()
        for task in sorted(takers, key=lambda task: (-shards[task.number], task.number)):
            places[task.node] += 1
            if places[task.node] <= most:
                chosen.add(task.number)
        return [task for task in takers if task.number in chosen]

    def look_at_tasks(self, rows: int, computing: float | None, now: float) -> None:
        """Take note of what the tasks have done; see `Gathering.look`.

        Parameters
        ----------
        rows : int
            Rows processed so far.
        computing : float or None
            Share of its busy time for which a task at home kept a processor busy; None if that was not measured.
        now : float
            The time in seconds.
        """
        takers = self.takers
        if takers and self.gathering is not None:
            tasks = max(self.by_node().values())
            waiting = all(task.queue.rows for task in takers)
            busy = sum(task.busy.per_second(now) for task in takers) / len(takers)
            moving = bool(self.moves.in_progress or self._strays(self._owners_to_be()))
            nodes = len({task.node for task in takers})
            self.gathering.look(Saturation(rows, tasks, waiting, busy, computing, moving, now, nodes))

    def look(self, load: float | None, now: float) -> None:
        """Take note of the executor's load; see `LightLoad.look`. Without a task at home no shard can return."""
        if any(task.at_home for task in self.active):
            self.light.look(load, now, away=bool(self._shards_away(self._owners_to_be())))

    def by_node(self) -> dict[int, int]:
        """Return the cores held on each node, without those of draining tasks."""
        cores: dict[int, int] = {}
        for task in self.active:
            cores[task.node] = cores.get(task.node, 0) + 1
        return cores

    def set(self, wanted: Mapping[int, int], loads: np.ndarray, now: float) -> list[Instruction]:
        """Start and drain tasks until each node has the wanted number of them.

        Parameters
        ----------
        wanted : mapping of int to int
            Cores by node; none on nodes that are not named.
        loads : numpy.ndarray
            Load of each shard, ``float64``.
        now : float
            The time in seconds.

        Returns
        -------
        list of Instruction
            What the driver carries out.

        Raises
        ------
        PlanningError
            If `wanted` leaves no core, has a negative number, or names a lost node.
        """
        if any(cores < 0 for cores in wanted.values()) or sum(wanted.values()) < 1:
            raise PlanningError(f"an executor keeps at least one core, but {dict(wanted)} was requested")
        lost = sorted(node for node in wanted if wanted[node] and node in self.lost_nodes)
        if lost:
            raise PlanningError(
                f"node {lost[0]} is lost, but {dict(wanted)} was requested: request cores there when it has returned"
            )
        held = self.by_node()
        instructions: list[Instruction] = []
        for node in sorted(wanted):
            for _ in range(wanted[node] - held.get(node, 0)):
                instructions.append(self._start(node))
        for node in sorted(held):
            surplus = held[node] - wanted.get(node, 0)
            for task in self._least_loaded(node, loads)[: max(surplus, 0)]:
                task.handle(TaskEvent.CORE_RETURNED)
        if not any(task.at_home for task in self.active):
            self.light.leave()
        # New tasks get shards at once, also of a small load.
        return instructions + self.drain(loads, now) + self.balance(loads, now, worthwhile=False)

    def _start(self, node: int) -> Instruction:
        task = Task(self._next, node, node == self.home, self.pending_bytes)
        self._next += 1
        self.routes.tasks[task.number] = task
        return StartTask(task.number, node)

    def _least_loaded(self, node: int, loads: np.ndarray) -> list[Task]:
        load = self._task_loads(loads)
        return sorted((t for t in self.active if t.node == node), key=lambda t: (load[t.number], -t.number))

    def _task_loads(self, loads: np.ndarray) -> dict[int, float]:
        owner = self.routes.table.owner
        return {number: float(loads[owner == number].sum()) for number in self.routes.tasks}

    def balance(self, loads: np.ndarray, now: float, worthwhile: bool = True) -> list[Instruction]:
        """Even out the task loads by moving shards that have no move; the load of a moving shard counts for its target.

        A move costs work of its own, which may include merging, and its shard's work waits while it is paused. A task
        that has little work gives a shard away only if that gains more until the next plans; most differences between
        such tasks are noise. What a loaded one gains, it gains for as long as the shares of the shards stay the same:
        as long again, it is assumed, as they have been so.

        Parameters
        ----------
        loads : numpy.ndarray
            Load of each shard, ``float64``.
        now : float
            The time in seconds.
        worthwhile : bool
            Whether to leave out moves that gain less than they cost.

        Returns
        -------
        list of Instruction
            What the driver carries out.
        """
        takers = self.takers
        numbers = [task.number for task in takers]
        # Tasks that had to wait for shards are new ones.
        worthwhile &= self._held.isdisjoint(numbers)
        self._held = frozenset(task.number for task in self.active).difference(numbers)
        owner = self._owners_to_be()
        if gathered := self._gathered(loads, owner, takers):
            self._planned, self._filling = deque(gathered), True
            return self.proceed(now)
        movable = np.isin(owner, numbers)
        if len(takers) < 2 or not movable.any():
            return []
        node_of_task = {task.number: task.node for task in takers}
        shards = np.flatnonzero(movable)
        work = loads[shards]
        # The plan for new tasks is carried out to its end.
        self._filling = not worthwhile or (self._filling and bool(self._planned))
        costs: tuple[ArrayLike, ArrayLike | None] = (0.0, None)
        if not self._filling:
            costs = self._costs(loads, owner, shards, now)
        plan = balance(work, owner[shards], numbers, self.threshold, node_of_task, *costs)
        self._planned = deque((int(shards[step.shard]), step.target) for step in plan)
        return self.proceed(now)

    def _costs(self, loads: Floats, owner: np.ndarray, shards: np.ndarray, now: float) -> tuple[Floats, Floats]:
        """Return what the moves of shards cost in seconds of work, within a node and between nodes."""
        beside = np.bincount(owner, loads)[owner]
        within = MOVE_SECONDS + min(self.moves.mean_pause_within, MOST_PAUSE) * loads
        across = self.moves.choice.work_of_moves(loads, beside)
        # A cost comes once, the gain again in each of these periods.
        stays = min(max(self.steady_seconds(now), AHEAD_SECONDS), MOST_STEADY) / AHEAD_SECONDS
        periods = np.where(beside < LIGHT_WORK, 1.0, stays)
        return (within / periods)[shards], (across / periods)[shards]

    def _owners_to_be(self) -> np.ndarray:
        """Return the owner of each shard after the moves that are under way."""
        owner = self.routes.table.owner.astype(np.int64)
        for shard, target in self.moves.targets().items():
            owner[shard] = target
        return owner

    def _gathered(self, loads: np.ndarray, owner: np.ndarray, takers: list[Task]) -> list[tuple[int, int]]:
        """Return the moves that bring the shards to the tasks that are to have them: a shard stays on its node."""
        strays = self._strays(owner)
        if not strays:
            return []
        load = {task.number: float(loads[owner == task.number].sum()) for task in takers}
        moves = []
        for shard in sorted(strays, key=lambda shard: (-loads[shard], shard)):
            node = self.routes.tasks[int(owner[shard])].node
            target = min(takers, key=lambda task: (task.node != node, load[task.number], task.number)).number
            load[target] += max(float(loads[shard]), 1e-9)
            moves.append((shard, target))
        return moves

    def _strays(self, owner: np.ndarray) -> list[int]:
        """Return the shards of active tasks that are to have none, except those moved there by a command."""
        takers = {task.number for task in self.takers}
        return self._shards_of(owner, [task.number for task in self.active if task.number not in takers])

    def _shards_away(self, owner: np.ndarray) -> list[int]:
        """Return the shards of active tasks on other nodes, except those moved there by a command."""
        return self._shards_of(owner, [task.number for task in self.active if not task.at_home])

    def _shards_of(self, owner: np.ndarray, tasks: list[int]) -> list[int]:
        if not tasks:
            return []
        return [s for s in np.flatnonzero(np.isin(owner, tasks)).tolist() if self._commanded.get(s) != owner[s]]

    def command_move(self, shard: int, target: int, now: float) -> list[Instruction]:
        """Begin the move of a shard that a command requests; a light load does not bring the shard home again.

        Raises
        ------
        MoveRefused
            If the shard cannot move to this task.
        """
        instructions = self.moves.begin(shard, target, now)
        self._commanded[shard] = target
        self._planned = deque(step for step in self._planned if step[0] != shard)
        return instructions

    def _begin(self, shard: int, target: int, now: float) -> list[Instruction]:
        """Begin a move that no command has requested."""
        self._commanded.pop(shard, None)
        return self.moves.begin(shard, target, now)

    def proceed(self, now: float) -> list[Instruction]:
        """Begin planned moves while fewer than `MOVES_AT_ONCE` are in progress."""
        instructions: list[Instruction] = []
        while self._planned and self.moves.in_progress < MOVES_AT_ONCE:
            shard, target = self._planned.popleft()
            task = self.routes.tasks.get(target)
            if shard not in self.moves and task is not None and task.status is TaskStatus.ACTIVE:
                instructions += self._begin(shard, target, now)
        return instructions

    def drain(self, loads: np.ndarray, now: float) -> list[Instruction]:
        """Move the shards of draining tasks to active ones, a few at a time; stop the tasks that own no shard."""
        instructions: list[Instruction] = []
        load, takers = self._task_loads(loads), self.takers
        for task in [t for t in self.routes.tasks.values() if t.status is TaskStatus.DRAINING]:
            instructions += self.moves.instant.task_drains(task.number, now)
            shards = self.routes.table.shards_of(task.number)
            for shard in shards[np.argsort(-loads[shards], kind="stable")].tolist():
                if self.moves.in_progress >= MOVES_AT_ONCE:
                    break
                if shard in self.moves:
                    continue
                target = min(takers, key=lambda t: (load[t.number], t.node != task.node, t.number))
                load[target.number] += max(float(loads[shard]), 1e-9)
                instructions += self._begin(shard, target.number, now)
            if not len(self.routes.table.shards_of(task.number)) and not self.moves.touches(task.number):
                task.handle(TaskEvent.EMPTIED)
                task.queue.put_control(StopItem())
                instructions += [Wake(number) for number in self.routes.wake(task)]
        return instructions

    def forget(self, task: int) -> None:
        """Drop a task whose thread has ended; does nothing when the task was lost before."""
        ended = self.routes.tasks.get(task)
        if ended is not None:
            ended.handle(TaskEvent.THREAD_ENDED)
            del self.routes.tasks[task]

    # losses

    def replace(self, replacements: Mapping[int, int]) -> list[Instruction]:
        """Start tasks in place of lost ones; one at home if no active task is left."""
        places = [
            node for node, cores in sorted(replacements.items()) for _ in range(cores) if node not in self.lost_nodes
        ]
        if not places and not self.active:
            places = [self.home]
        return [self._start(node) for node in places]

    def heirs(self, shards: Iterable[int], loads: np.ndarray) -> dict[int, int]:
        """Return an active task for each shard: the heaviest shards first, each to the task with the least load."""
        load, takers = self._task_loads(loads), self.takers
        heirs: dict[int, int] = {}
        for shard in sorted(shards, key=lambda s: (-loads[s], s)):
            heir = min(takers, key=lambda task: (load[task.number], not task.at_home, task.number))
            load[heir.number] += max(float(loads[shard]), 1e-9)
            heirs[shard] = heir.number
            self._commanded.pop(shard, None)
        return heirs
