"""Follows both jobs until they have ended: prints a line per second, and has a worker of each killed in the midst."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from dask_elastic.cli.demo.contestant import Contestant
from dask_elastic.cli.demo.course import Course
from dask_elastic.cli.demo.happening import Happening
from dask_elastic.cli.demo.load import Load
from dask_elastic.cli.demo.outage import LONGEST, Outage
from dask_elastic.cli.demo.position import Position
from dask_elastic.cli.demo.second import Second
from dask_elastic.cli.demo.side_by_side import line
from dask_elastic.cli.terminal.console import show
from dask_elastic.cli.terminal.quantities import duration
from dask_elastic.runtime.protocol.job_description import JobDescription

LOOK_SECONDS = 0.5

OUTAGE_LOOK_SECONDS = 0.1
"""Seconds between two looks while jobs restart, so that the seconds of recovery are precise."""

LINE_SECONDS = 1.0

BACKLOG = "static processes its backlog"

LOOK_BACK = 4
"""Number of snapshots to read at each look, so that none is missed when the machine is busy."""


class Follower:
    """Follows both jobs.

    Parameters
    ----------
    static, elastic : Contestant
        The jobs.
    load : Load
        The load of each.
    ends : sequence of int
        The number of rows that a job has read at the end of each month.
    hot : sequence of bool
        Whether each month has hot routes.
    outage : Outage
        When a worker of each is to be killed.

    Attributes
    ----------
    courses : dict of str to Course
        The course of each job, by its name.
    """

    def __init__(
        self,
        static: Contestant,
        elastic: Contestant,
        load: Load,
        ends: Sequence[int],
        hot: Sequence[bool],
        outage: Outage,
    ):
        self.static, self.elastic = static, elastic
        self.outage = outage
        self._rows = ends[-1]
        seconds = self._rows / load.rate
        self.courses = {one.name: Course(one.name, load.target, seconds) for one in (static, elastic)}
        self._live = [static, elastic]
        self._happening = Happening(ends, hot)
        self._position = Position()
        self._shown: dict[str, Second | None] = {}
        # What happened before the first measured second, when there was no line to show it.
        self._untold: list[str] = []
        self._began: float | None = None
        self._printed = 0.0

    def look(self) -> bool:
        """Show what is new; returns whether a job is still live.

        Raises
        ------
        JobFailed, JobStopped
            If a job has failed or was stopped.
        TimeoutError
            If a job does not recover.
        """
        described = {one.name: one.describe() for one in self._live}
        for one in [one for one in self._live if not described[one.name].live]:
            one.job.wait(progress=False)  # raises for a job that failed or was stopped
            self._live.remove(one)
            self._shown[one.name] = None
        row = self._row(described)
        texts = [*self._untold, *self._follow_outage(row, described)]
        leading, seconds = self._add_snapshots()
        if self._began is None and seconds:
            self._began = leading.began or 0.0
            texts.insert(0, self._happening.month(0))
        elif self._began is not None:
            texts.insert(0, self._happening.month(row))
        for second in seconds:
            self._shown[leading.name] = second
            news = self._happening.changes(second.cores) if leading.name == self.elastic.name else ""
            backlog = BACKLOG if self.only_backlog else ""
            self._show(second.at + (leading.began or 0.0), [*texts[:1], news, *texts[1:], backlog])
            texts = []
        texts = [*filter(None, texts)]
        late = bool(self.outage.lasting) and time.time() - self._printed >= LINE_SECONDS
        self._untold = texts if self._began is None else []
        if self._began is not None and (texts or late):
            self._show(time.time(), texts)
        return bool(self._live)

    @property
    def wait_seconds(self) -> float:
        """Seconds until the next look."""
        return OUTAGE_LOOK_SECONDS if self.outage.lasting else LOOK_SECONDS

    @property
    def only_backlog(self) -> bool:
        """Whether the elastic job has ended, and the static one processes its backlog."""
        return self.elastic not in self._live

    def _row(self, described: Mapping[str, JobDescription]) -> int:
        """Return how many rows the elastic job has read."""
        found = described.get(self.elastic.name)
        if found is None:
            return self._rows
        complete = None if found.checkpoints is None else found.checkpoints.complete
        began = None if complete is None else complete.began
        return self._position.of(time.time(), found.generation, found.rows_read, began)

    def _follow_outage(self, row: int, described: Mapping[str, JobDescription]) -> list[str]:
        """Kill the workers when it is time, and note which job has recovered; returns what is new."""
        outage = self.outage
        if outage.is_due(row) and len(self._live) == len(self.courses) and all(map(_can_restart, described.values())):
            outage.begin(time.time(), {name: found.generation for name, found in described.items()})
            for one in self._live:
                one.kill_home()
            self._shown.clear()
            self._leave_out()
            return ["kill -9: one worker of each job"]
        texts = []
        for one in [one for one in (self.static, self.elastic) if one.name in outage.lasting & described.keys()]:
            found = described[one.name]
            works = any(executor.rows for executor in found.executors)
            if outage.note(one.name, time.time(), found.generation, works):
                self._shown[one.name] = None  # what it showed is of the generation before
                texts.append(f"{one.label} goes on after {duration(outage.recovered[one.name])}")
        if self.elastic.name in outage.recovered.keys() & described.keys():
            complete = self.elastic.is_complete(described[self.elastic.name])
            if complete and outage.note_replaced(time.time()):
                texts.append(f"{self.elastic.label} has two workers again")
        if outage.is_too_long(time.time()):
            names = " and ".join(sorted(outage.lasting))
            raise TimeoutError(f"{names} did not recover within {LONGEST:g} s from the loss of a worker")
        self._leave_out()
        return texts

    def _leave_out(self) -> None:
        for course in self.courses.values():
            course.left_out, course.pause = self.outage.left_out, self.outage.pause

    def _add_snapshots(self) -> tuple[Course, list[Second]]:
        """Add the new snapshots to the courses.

        Returns
        -------
        tuple of Course and list of Second
            The course that gives the pace of the lines, and its new seconds.
        """
        new: dict[str, list[Second]] = {}
        for one in self._live:
            added = map(self.courses[one.name].add, one.job.snapshots(last=LOOK_BACK))
            new[one.name] = [second for second in added if second is not None]
            for second in new[one.name]:
                self._shown[one.name] = second
        leads = self.elastic.name in new and self.elastic.name not in self.outage.lasting
        name = (self.elastic if leads else self.static).name
        return self.courses[name], new.get(name, [])

    def _show(self, now: float, texts: Sequence[str]) -> None:
        static, elastic = (self.courses[one.name] for one in (self.static, self.elastic))
        self._printed = time.time()
        at = now - (self._began or now)
        show(line(at, static, elastic, self._shown, "; ".join(filter(None, texts)), self.outage.lasting))


def _can_restart(described: JobDescription) -> bool:
    """Return whether a job runs and has a checkpoint from which it continues."""
    checkpoints = described.checkpoints
    return described.status.value == "running" and checkpoints is not None and checkpoints.number > 0
