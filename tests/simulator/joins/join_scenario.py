"""Seeded simulations of a join under disturbances and checkpoints, each with its expected results."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from checkpointed_scenario import ATTEMPTS, BETWEEN, EARLIER, GIVEN_UP, HASTY, OVERTAKEN
from join_job import KINDS, expected, make_batches, make_topology
from scenario import Scenario

from dask_elastic.executor.limits import ExecutorLimits
from dask_elastic.simulator import CheckpointCommands, Disturber, Placement, SimulatedCheckpoint, World, WorldOptions
from dask_elastic.state.joins.layout import CHECK, HASH, KIND, MARK
from dask_elastic.topology import build_components
from dask_elastic.topology.joins.joining import LEFT, RIGHT


@dataclass(frozen=True)
class Job:
    """What a simulated job joins, and how."""

    kind: str
    how: str
    choice: int
    batches: tuple[list[pa.RecordBatch], list[pa.RecordBatch]]
    shards: int
    slack: float
    late: bool
    """Whether rows may be late."""

    def components(self):
        return build_components(make_topology(self.kind, self.how, self.choice, self.batches, self.slack, self.shards))

    def rows(self, side: int) -> list[dict]:
        number = ("left", "right")[side]
        return [
            {"key": row["key"], "at": row["at"], "number": row[number]}
            for batch in self.batches[side]
            for row in batch.set_column(1, "at", batch["at"].cast(pa.int64())).to_pylist()
        ]


def draw_job(random: np.random.Generator, seed: int, batches: int | None) -> Job:
    kind = KINDS[seed % 3]
    late = kind == "interval" and seed % 2 == 0
    hows = ("left", "inner") if kind == "asof" else ("outer",) if late else ("outer", "inner", "left", "right")
    disorder = int(random.integers(6, 25) if late else random.integers(0, 6))
    drawn = tuple(make_batches(random, name, disorder)[:batches] for name in ("left", "right"))
    # Times of neighbours differ by 10 at most: rows that are out of order are not late within this slack.
    slack = 0.0 if late else disorder * 10 / 1e6
    how = str(random.choice(hows))
    return Job(kind, how, int(random.integers(0, 12)), drawn, int(random.integers(4, 17)), slack, late)


@dataclass(frozen=True)
class JoinScenario(Scenario):
    """A `Scenario` of a job with a join."""

    def build(self) -> JoinSimulation:
        random = np.random.default_rng(self.seed)
        job = draw_job(random, self.seed, self.batches)
        options = WorldOptions(
            window=int(random.choice([400, 3000, 2**20])),
            row_seconds=float(random.choice([0.0001, 0.001])),
            limits=ExecutorLimits(
                patience=0.01 if self.seed % 3 == 0 else 0.0, pending_bytes=int(random.choice([200, 2**20]))
            ),
            check=True,
            history=self.history,
            repeats=0.1 if self.outages else 0.0,
            event_time="at",
        )
        world = World(job.components(), self._placement(random), random, self.adjusted(options))
        self._take_checkpoints(world)
        return JoinSimulation(world, job, Disturber(world, self.drawn().disturbances or ()))

    def _placement(self, random: np.random.Generator) -> Placement:
        homes, guests = (int(random.integers(1, 3)), int(random.integers(1, 3))) if self.outages else (3, 0)
        instances = int(random.integers(1, 3))
        at_home = {"left": (0,), "right": (0,), "joined": tuple(random.integers(0, homes, instances).tolist())}
        cores = tuple(
            dict(Counter(random.integers(0, homes + guests, int(random.integers(1, 4))).tolist()))
            for _ in at_home["joined"]
        )
        return Placement(homes + guests, at_home, {"joined": cores})

    def _take_checkpoints(self, world: World) -> None:
        commands = CheckpointCommands(world)
        random = np.random.default_rng([self.seed, 2])

        def begin() -> None:
            if world.checkpoints.progress is None or random.random() < (OVERTAKEN if self.seed % 4 else HASTY):
                commands.begin()

        for at in np.cumsum(random.integers(1, BETWEEN, ATTEMPTS)).tolist():
            world.schedule.at(at, begin)
            if random.random() < GIVEN_UP:
                world.schedule.at(at + int(random.integers(1, BETWEEN)), commands.give_up)

    def continued(self, first: JoinSimulation, checkpoint: SimulatedCheckpoint) -> JoinSimulation:
        """Return a simulation that continues from a checkpoint of the first one."""
        random = np.random.default_rng([self.seed, 3, checkpoint.number])
        world = first.world
        sinks = {
            identity: tuple((step - EARLIER, rows) for step, rows in received)
            for identity, received in checkpoint.sinks.items()
        }
        restore = SimulatedCheckpoint(checkpoint.number, checkpoint.sources, checkpoint.executors, sinks)
        restored = World(first.job.components(), world.placement, random, world.options, restore)
        restored.schedule.now = world.now
        restored.event_times.excused |= world.event_times.excused
        return JoinSimulation(restored, first.job, Disturber(restored, ()))

    def run(self) -> JoinSimulation:
        """Run it to the end, and continue from each complete checkpoint."""
        first = super().run()
        assert isinstance(first, JoinSimulation)
        for checkpoint in first.world.checkpoints.complete:
            try:
                self.continued(first, checkpoint).run()
            except Exception as error:
                error.add_note(f"{self}, continued from checkpoint {checkpoint.number}")
                raise
        return first


@dataclass
class JoinSimulation:
    """One simulation; it must emit exactly the results of the rows that were not late."""

    world: World
    job: Job
    disturber: Disturber

    def run(self) -> None:
        self.world.run()
        self.check()

    def emitted(self) -> Counter:
        found: Counter = Counter()
        for sink in self.world.sinks.values():
            for _, rows in sink.received:
                begins = [None] * rows.num_rows
                if self.job.kind == "window":
                    begins = rows["window_start"].cast(pa.int64()).to_pylist()
                    self._check_text(rows)
                found.update(zip(rows["left"].to_pylist(), rows["right"].to_pylist(), begins, strict=True))
        return found

    @staticmethod
    def _check_text(rows: pa.RecordBatch) -> None:
        """Check that the columns of a row are its own."""
        for number, text in (("left", "text"), ("right", "text_right")):
            for value, written in zip(rows[number].to_pylist(), rows[text].to_pylist(), strict=True):
                assert written == (None if value is None or value % 5 == 0 else "x" * (value % 4))

    def check(self) -> None:
        emitted, rows = self.emitted(), [self.job.rows(side) for side in (LEFT, RIGHT)]
        if self.job.late:
            # All rows that are not late are in the results of an outer join.
            present = [{result[side] for result in emitted} for side in (LEFT, RIGHT)]
            left = [[row for row in rows[side] if row["number"] in present[side]] for side in (LEFT, RIGHT)]
            missing = sum(map(len, rows)) - sum(map(len, left))
            rows = left
        else:
            missing = 0
        wanted = expected(self.job.kind, self.job.how, self.job.choice, *rows)
        assert emitted == wanted, f"lacks {wanted - emitted}, has in excess {emitted - wanted}"
        late, timeless, buffered = self.counts()
        assert (late, timeless) == (missing, 0)
        assert not buffered, f"{buffered} rows are left behind the end"

    def counts(self) -> tuple[int, int, int]:
        """Return the late rows, those without a time, and those that are buffered."""
        late = timeless = buffered = 0
        for home in self.world.homes.values():
            store = home.executor.store
            if store.key_schema is None:
                continue
            _, values = store.rows()
            kinds = values[KIND]
            late += int(values[HASH][kinds == MARK].sum())
            timeless += int(values[CHECK][kinds == MARK].sum())
            buffered += int(np.isin(kinds, (LEFT, RIGHT)).sum())
        return late, timeless, buffered

    def happened(self) -> Counter[str]:
        """Return how often each relevant event occurred."""
        happened = Counter({"records": self.world.record_ledger.records, "late": self.counts()[0]})
        happened["checkpoints"] += len(self.world.checkpoints.complete)
        happened[self.job.kind] += self.emitted().total()
        for home in self.world.homes.values():
            happened["losses with replay"] += sum(r.rows > 0 for r in home.executor.recoveries())
            happened["moves across nodes"] += home.executor.moves.finished_across
        return happened
