"""The contest: both jobs while they run, second by second, and the judgement at their end."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq

from dask_elastic.cli.demo.checks import Check, compare_state, compare_updates
from dask_elastic.cli.demo.closing_table import closing_table
from dask_elastic.cli.demo.course import Course
from dask_elastic.cli.demo.feed import Feed
from dask_elastic.cli.demo.flight_delays import KEYS
from dask_elastic.cli.demo.happening import Happening
from dask_elastic.cli.demo.judgement import judge
from dask_elastic.cli.demo.load import Load
from dask_elastic.cli.demo.outcome import Outcome
from dask_elastic.cli.demo.second import Second
from dask_elastic.cli.demo.side_by_side import HEAD, line
from dask_elastic.cli.terminal.console import show
from dask_elastic.cli.terminal.progress_bar import progress_bar
from dask_elastic.runtime.client.call import call_scheduler
from dask_elastic.runtime.client.job import ENDED, Job
from dask_elastic.runtime.protocol.job_calls import Describe

LOOK_SECONDS = 0.5

BACKLOG = "static processes its backlog"

LOOK_BACK = 4
"""Number of snapshots to read at each look, so that none is missed when the machine is busy."""


@dataclass(frozen=True)
class Contest:
    """Both jobs while they run.

    Parameters
    ----------
    static, elastic : Job
        The jobs.
    feed : Feed
        Brings the flights into them.
    load : Load
        The load of each.
    ends : list of int
        The number of rows that a job has read at the end of each month.
    hot : list of bool
        Whether each month has hot routes.
    out : Path
        Directory for the results.
    """

    static: Job
    elastic: Job
    feed: Feed
    load: Load
    ends: list[int]
    hot: list[bool]
    out: Path

    def run(self) -> list[Check]:
        """Show both jobs until they have ended; return the checks of their results and latencies."""
        courses = self._follow()
        static, elastic = (_outcome(job, course) for job, course in zip(self._jobs, courses, strict=True))
        show("", closing_table(static, elastic, self.load.target, self.ends[-1]), "")
        return [*judge(static, elastic, self.ends[-1]), *self._compare()]

    @property
    def _jobs(self) -> tuple[Job, Job]:
        return self.static, self.elastic

    def _follow(self) -> tuple[Course, Course]:
        """Print a line for each second until both jobs have ended."""
        seconds = self.ends[-1] / self.load.rate
        static, elastic = (Course(job.name, self.load.target, seconds) for job in self._jobs)
        happening = Happening(self.ends, self.hot)
        shown: dict[str, Second | None] = {}
        began: float | None = None
        show(*HEAD)
        while live := [job for job in self._jobs if job.status not in ENDED]:
            self.feed.check()
            for snapshot in live[0].snapshots(last=LOOK_BACK):
                new = {course.name: course.add(snapshot) for course in (static, elastic)}
                shown |= {name: second for name, second in new.items() if second is not None}
                names = {job.name for job in live}
                shown = {name: second for name, second in shown.items() if name in names}
                leading = new[elastic.name] or (None if elastic.name in names else new[static.name])
                if leading is None:
                    continue
                began = snapshot.now if began is None else began
                cores = leading.cores if new[elastic.name] is not None else {}
                rows = call_scheduler(self.elastic.client, Describe(self.elastic.name)).rows_read
                happens = happening.text(rows, cores) if cores else BACKLOG
                show(line(snapshot.now - began, static, elastic, shown, happens))
            time.sleep(LOOK_SECONDS)
        for job in self._jobs:
            job.wait(progress=False)  # raises for a job that failed or was stopped
        return static, elastic

    def _compare(self) -> list[Check]:
        """Write the final states to files, and compare all results with the batch's."""
        with progress_bar(f"Computing the results with {self.feed.against}"):
            expected = self.feed.expected()
        checks: list[Check] = []
        for label, job in (("static", self.static), ("elastic", self.elastic)):
            folder = self.out / job.name
            for operator in KEYS:
                state = job.state(operator).to_arrow()
                pq.write_table(state, folder / f"{operator}.parquet")
                checks += compare_state(label, operator, state.to_pandas(), expected[operator])
            checks.append(compare_updates(label, folder / "route_updates", expected["per_route"]))
        return checks


def _outcome(job: Job, course: Course) -> Outcome:
    described = call_scheduler(job.client, Describe(job.name))
    return Outcome(
        seconds=len(course.judged),
        share=course.share,
        mean=course.mean,
        p99=course.p99,
        core_seconds=course.core_seconds,
        rows=described.rows_read,
        moves=sum(executor.moves for executor in described.executors),
    )
