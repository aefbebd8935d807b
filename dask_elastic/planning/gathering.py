"""Over how many tasks of a node an executor's shards are spread: as many as make it faster.

Goal
    The tasks of an executor on one node share an interpreter. Logic that computes in it for a moment, then outside of
    it, as vectorised code does, hands it from thread to thread with each step, and its rows are divided among the tasks
    before. Then one task processes more rows than two. Logic that waits, or computes outside for long, needs all tasks.
Heuristic
    Hill climbing while the executor is saturated: with half as many tasks, or twice as many, the rows per second are
    measured and compared with those before. The other number is kept if it is clearly better, or more tasks keep up
    with what arrives. What was not better is tried ever more rarely. Fewer tasks are tried only if the processor time
    of the tasks shows that they wait while they are busy; if they do little but wait, all tasks get shards without a
    trial.
Not done
    Tasks of other executors share the interpreter, too. Each executor decides for itself.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import median

from dask_elastic.vocab.errors import PlanningError

BUSY = 0.5
"""Share of the time for which tasks are busy, at least, if their rows wait for them rather than for something else."""

COMPUTES = 0.9
"""Share of their busy time for which tasks compute that hardly get in each other's way: fewer are not tried."""

WAITS = 0.2
"""Processors that the tasks keep busy together, while they are busy, below which they wait for something else.

Those that wait for the interpreter, or for a processor of a loaded machine, compute more.
"""

LOOKS = 3
"""Looks over which rows per second are measured, before a trial and in it."""

GAIN = 1.1
"""How many times as many rows per second make another number of tasks the better one."""

FIRST_PATIENCE = 3.0
"""Seconds before the first trial with another number of tasks."""

LONGEST_PATIENCE = 600.0
"""Seconds up to which this time doubles with each trial that fails."""

LONGEST_TRIAL = 5.0
"""Seconds after which a trial ends during which shards are still moving."""

CALM = 5.0
"""Seconds after the last saturated look from which on no trial is expected soon."""

FEWER, MORE = -1, 1
"""Directions of trials."""


@dataclass(frozen=True)
class Saturation:
    """What an executor has done since the last look.

    Parameters
    ----------
    rows : int
        Rows processed so far.
    tasks : int
        Its active tasks on the node where it has the most.
    waiting : bool
        Whether rows wait for each task that has shards.
    busy : float
        Share of the time for which such a task was busy: the mean over them.
    computing : float or None
        Share of its busy time for which such a task at home kept a processor busy; None if that was not measured.
    moving : bool
        Whether shards are moving, or are to move, to other tasks.
    now : float
        The time in seconds.
    nodes : int
        The nodes of the tasks that may have shards.
    """

    rows: int
    tasks: int
    waiting: bool
    busy: float
    computing: float | None
    moving: bool
    now: float
    nodes: int = 1

    @property
    def is_saturated(self) -> bool:
        """Whether more rows per second would come if they were processed."""
        return self.waiting and self.busy >= BUSY


@dataclass(frozen=True)
class _Trial:
    """Another number of tasks that is tried: in which direction, since when, and what was before."""

    direction: int
    began: float
    most: int | None
    rows_per_second: float


class Gathering:
    """Decides over how many tasks of each node the shards of an executor are spread.

    Parameters
    ----------
    most : int or None
        Tasks of each node that get shards in the beginning; None for all.

    Attributes
    ----------
    most : int or None
        Tasks of each node that get shards; None for all.

    Raises
    ------
    PlanningError
        If `most` is less than 1.

    Examples
    --------
    With two tasks the executor processes 10 rows a second, with one 15:

    >>> gathering, rows = Gathering(), 0
    >>> for second in range(20):
    ...     gathering.look(Saturation(rows, 2, True, busy=1.0, computing=0.5, moving=False, now=second))
    ...     rows += 10 if gathering.most is None else 15
    >>> gathering.most, gathering.proven(now=20)
    (1, 1)
    """

    def __init__(self, most: int | None = None):
        if most is not None and most < 1:
            raise PlanningError(f"most is {most}: give at least one task of each node, or None for all of them.")
        self.most = most
        self._patience = {FEWER: FIRST_PATIENCE, MORE: FIRST_PATIENCE}
        # When a trial in each direction ended, or when the first look was.
        self._ended: dict[int, float] = {}
        self._trial: _Trial | None = None
        # Whether more tasks were tried, or as many were left because these are better.
        self._is_proven = False
        # Rows per second between looks, and whether the executor was saturated.
        self._rates: list[tuple[float, bool]] = []
        self._last: Saturation | None = None
        # The last share of computing that was measured: that of remote tasks is not.
        self._computing: float | None = None
        self._saturated_at = -math.inf

    def proven(self, now: float) -> int | None:
        """Return how many tasks of each node are known to be as fast as any more.

        Parameters
        ----------
        now : float
            The time in seconds.

        Returns
        -------
        int or None
            Number of tasks; None if all tasks are needed, if that is not known, and when it is to be tried again, which
            it is only while the executor is saturated.
        """
        if self._trial is not None and self._trial.direction == MORE:
            return None
        most = self.most if self._trial is None else self._trial.most
        is_saturated = self._last is not None and self._last.is_saturated
        expects_trial = self._is_due(MORE, now) and (is_saturated or now - self._saturated_at < CALM)
        return most if self._is_proven and not expects_trial else None

    def look(self, seen: Saturation) -> None:
        """Take note of what the executor has done."""
        last, self._last = self._last, seen
        if seen.is_saturated:
            self._saturated_at = seen.now
        if not self._ended:
            self._ended = {FEWER: seen.now, MORE: seen.now}
        if seen.computing is not None:
            self._computing = seen.computing
        if self._waits(seen):
            # Of a single task as well: the next ones may be on other nodes, where this is not measured.
            self._spread(seen.now)
        if seen.tasks < 2:
            # There is no choice. What was decided holds until there is.
            self._give_up()
            return
        if last is None or seen.now <= last.now:
            return
        if self._trial is not None and (seen.nodes - last.nodes) * self._trial.direction < 0:
            # Another node would make fewer tasks look faster, and one node less would make more tasks look slower.
            self._give_up()
            return
        if seen.moving or last.moving or (seen.tasks, seen.nodes) != (last.tasks, last.nodes):
            self._rates.clear()
            if self._trial is not None and seen.now - self._trial.began > LONGEST_TRIAL:
                self._fail(self._trial, seen.now, is_shown=False)
            return
        rate = (seen.rows - last.rows) / (seen.now - last.now)
        self._rates = [*self._rates, (rate, seen.is_saturated)][-LOOKS:]
        if self._trial is not None:
            self._judge(self._trial, seen.now)
        elif not seen.is_saturated:
            self._rates.clear()
        elif len(self._rates) == LOOKS:
            self._try_another(seen)

    def _waits(self, seen: Saturation) -> bool:
        """Whether the tasks that have shards mostly wait for something else than the interpreter."""
        if self.most is None or self._computing is None:
            return False
        return min(self.most, seen.tasks) * self._computing < WAITS

    def _spread(self, now: float) -> None:
        self._end(now)
        self.most, self._is_proven = None, False
        # What a starved machine shows may be taken for waiting again and again.
        self._patience[FEWER] = min(2 * self._patience[FEWER], LONGEST_PATIENCE)

    def _is_due(self, direction: int, now: float) -> bool:
        return now - self._ended.get(direction, now) >= self._patience[direction]

    def _try_another(self, seen: Saturation) -> None:
        for direction in (FEWER, MORE):
            most = self._other(direction, seen)
            if most != self.most and self._is_due(direction, seen.now):
                self._trial = _Trial(direction, seen.now, self.most, median(rate for rate, _ in self._rates))
                self.most = most
                self._rates.clear()
                return

    def _other(self, direction: int, seen: Saturation) -> int | None:
        """Return the number of tasks to try in a direction: the present one if there is none."""
        if direction == MORE:
            if self.most is None or self.most >= seen.tasks:
                return self.most
            return None if 2 * self.most >= seen.tasks else 2 * self.most
        present = seen.tasks if self.most is None else min(self.most, seen.tasks)
        computing = seen.computing
        if present == 1 or computing is None or computing > COMPUTES or present * computing < WAITS:
            return self.most
        return math.ceil(present / 2)

    def _judge(self, trial: _Trial, now: float) -> None:
        rates = [rate for rate, _ in self._rates]
        is_worse = len(rates) == LOOKS - 1 and max(rates) < trial.rows_per_second
        if len(rates) < LOOKS and not is_worse:
            return
        # Then as many rows were processed as arrived: how many more there could be is not known.
        is_idle = 2 * sum(is_saturated for _, is_saturated in self._rates) < len(rates)
        catches_up = trial.direction == MORE and is_idle and median(rates) >= trial.rows_per_second
        if median(rates) < GAIN * trial.rows_per_second and not catches_up:
            self._fail(trial, now, is_shown=not is_idle)
            return
        self._end(now)
        self._is_proven = trial.direction == FEWER
        # The way back has been measured by this trial as well.
        back = min(2 * self._patience[-trial.direction], LONGEST_PATIENCE)
        self._patience = {trial.direction: FIRST_PATIENCE, -trial.direction: back}

    def _fail(self, trial: _Trial, now: float, is_shown: bool) -> None:
        self._end(now)
        self.most = trial.most
        self._is_proven |= is_shown and trial.direction == MORE
        self._patience[trial.direction] = min(2 * self._patience[trial.direction], LONGEST_PATIENCE)

    def _end(self, now: float) -> None:
        self._trial = None
        self._rates.clear()
        self._ended = {FEWER: now, MORE: now}

    def _give_up(self) -> None:
        """End a trial without a result."""
        if self._trial is not None:
            self.most, self._trial = self._trial.most, None
        self._rates.clear()
