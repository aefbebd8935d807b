"""The contest: both jobs while they run, and the checks of their results and latencies at their end."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dask_elastic.cli.demo.checks import Check, compare_state, compare_updates
from dask_elastic.cli.demo.closing_table import closing_table
from dask_elastic.cli.demo.contestant import Contestant
from dask_elastic.cli.demo.feed import Feed
from dask_elastic.cli.demo.flight_delays import KEYS
from dask_elastic.cli.demo.follower import Follower
from dask_elastic.cli.demo.judgement import judge
from dask_elastic.cli.demo.load import Load
from dask_elastic.cli.demo.outage import Outage
from dask_elastic.cli.demo.outcome import Outcome
from dask_elastic.cli.demo.phases import Phases
from dask_elastic.cli.demo.side_by_side import HEAD
from dask_elastic.cli.terminal.console import show
from dask_elastic.cli.terminal.progress_bar import progress_bar

States = dict[str, pa.Table]
"""The final state of each operator of a job."""


@dataclass(frozen=True)
class Contest:
    """Both jobs while they run.

    Parameters
    ----------
    static, elastic : Contestant
        The jobs.
    feed : Feed
        Brings the flights into them.
    load : Load
        The load of each.
    ends : list of int
        The number of rows that a job has read at the end of each month.
    arrived : int
        The number of flights that arrived, which the jobs count.
    hot : list of bool
        Whether each month has hot routes.
    loss_row : int
        The row at which a worker of each job is killed.
    out : Path
        Directory for the results.
    phases : Phases
        Measures the phases.
    """

    static: Contestant
    elastic: Contestant
    feed: Feed
    load: Load
    ends: list[int]
    arrived: int
    hot: list[bool]
    loss_row: int
    out: Path
    phases: Phases

    def run(self) -> list[Check]:
        """Show both jobs until they have ended; return the checks of their results and latencies."""
        outage = Outage(self.loss_row)
        follower = Follower(self.static, self.elastic, self.load, self.ends, self.hot, outage)
        show(*HEAD)
        self.phases.begin("flights")
        while follower.look():
            self.feed.check()
            if follower.only_backlog:
                self.phases.begin("backlog")
            time.sleep(follower.wait_seconds)
        self.phases.begin("comparison")
        states = {one.name: _states(one) for one in self._both}
        static, elastic = (_outcome(one, follower, states[one.name]) for one in self._both)
        show("", closing_table(static, elastic, self.load.target, self.arrived), "")
        return [*judge(static, elastic, self.arrived), *self._compare(states)]

    @property
    def _both(self) -> tuple[Contestant, Contestant]:
        return self.static, self.elastic

    def _compare(self, states: dict[str, States]) -> list[Check]:
        """Write the final states to files, and compare all results with the batch's."""
        with progress_bar(f"Computing the results with {self.feed.against}"):
            expected = self.feed.expected()
        checks: list[Check] = []
        for one in self._both:
            folder = self.out / one.name
            for operator, state in states[one.name].items():
                pq.write_table(state, folder / f"{operator}.parquet")
                checks += compare_state(one.label, operator, state.to_pandas(), expected[operator])
            checks.append(compare_updates(one.label, folder / "route_updates", expected["per_route"]))
        return checks


def _states(one: Contestant) -> States:
    return {operator: one.job.state(operator).to_arrow() for operator in KEYS}


def _outcome(one: Contestant, follower: Follower, states: States) -> Outcome:
    course = follower.courses[one.name]
    return Outcome(
        seconds=len(course.judged),
        share=course.share,
        mean=course.mean,
        p99=course.p99,
        core_seconds=course.core_seconds,
        # The sources' counters start at 0 with each restart, and count repeated rows again; the state is exact.
        rows=int(pc.sum(states["per_plane"]["flights"]).as_py() or 0),
        moves=course.moves,
        recovery=follower.outage.recovered.get(one.name),
    )
