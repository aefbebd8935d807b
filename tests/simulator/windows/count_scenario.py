"""Seeded simulations of a job with count windows under disturbances and checkpoints, with its expected results."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, replace

import pyarrow as pa
from timer_job import timed_part
from window_job import AGGREGATES, TIME
from window_scenario import WindowScenario, WindowSimulation

from dask_elastic.executor.keyed_state import read_state
from dask_elastic.simulator import Disturber
from dask_elastic.topology.windowing import CountWindow, Windowing

WINDOWINGS = (
    Windowing((CountWindow(3, 3),), ()),
    Windowing((CountWindow(4, 1),), ()),
    Windowing((CountWindow(6, 4),), ()),
    Windowing((CountWindow(2, 3),), ()),
    Windowing((CountWindow(3, 3),), (TIME,)),
    Windowing((CountWindow(5, 2),), (TIME,)),
)


@dataclass(frozen=True)
class CountScenario(WindowScenario):
    """A `WindowScenario` with count windows."""

    @property
    def windowing(self) -> Windowing:
        return WINDOWINGS[self.seed % len(WINDOWINGS)]

    def _simulation(self, batches, shards, random, options) -> CountSimulation:
        # Results may be older than the watermark: count windows do not wait for it.
        made = super()._simulation(batches, shards, random, replace(options, event_time=""))
        return CountSimulation(made.world, made.batches, made.disturber, shards, self.place, self.windowing)

    def continued(self, first, checkpoint) -> CountSimulation:
        made = super().continued(first, checkpoint)
        return CountSimulation(
            made.world, first.batches, Disturber(made.world, ()), first.shards, self.place, self.windowing
        )


@dataclass
class CountSimulation(WindowSimulation):
    """One simulation; each complete instance of each key has one result."""

    def check(self) -> None:
        window = self.windowing.windows[0]
        assert isinstance(window, CountWindow)
        wanted, left = [], {}
        for key, rows in self._rows().items():
            begins = range(0, len(rows) - window.length + 1, window.frequency)
            wanted += [self._result(key, begin, rows[begin : begin + window.length]) for begin in begins]
            left[key] = [row["number"] for row in rows[len(begins) * window.frequency :]]
        received = [row for sink in self.world.sinks.values() for _, rows in sink.received for row in _plain(rows)]
        assert sorted(tuple(row.values()) for row in received) == sorted(wanted)
        assert self._kept() == {key: numbers for key, numbers in left.items() if numbers}
        if not self.world.restore.executors:
            counted = sum((home.executor.store.counted() or (0,))[0] for home in self.world.homes.values())
            assert counted == sum(
                len(self._containing(number)) for rows in self._rows().values() for number in range(len(rows))
            )

    def _rows(self) -> dict[str, list[dict]]:
        """Return the rows of each key that count, in order."""
        rows: dict[str, list[dict]] = defaultdict(list)
        for batch in self.batches:
            for row in _plain(batch):
                if not self.windowing.time or row[TIME] is not None:
                    rows[row["key"]].append(row)
        return rows

    def _containing(self, number: int) -> list[int]:
        window = self.windowing.windows[0]
        return [begin for begin in range(0, number + 1, window.frequency) if begin <= number < begin + window.length]

    def _result(self, key: str, begin: int, rows: list[dict]) -> tuple:
        values, numbers = ([row[name] for row in rows] for name in ("value", "number"))
        times = [row[TIME] for row in rows] if self.windowing.time else [begin, begin + len(rows) - 1]
        assert list(AGGREGATES) == ["rows", "sum", "most", "numbers"]
        return key, min(times), max(times) + 1, len(rows), sum(values), max(values), numbers

    def _kept(self) -> dict[str, list[int]]:
        """Return the rows of each key that the state has and a later instance contains."""
        kept: dict[str, list[int]] = defaultdict(list)
        for home in self.world.homes.values():
            compute, store = timed_part(home, self.place)
            table = None if store.key_schema is None else read_state(compute, store)
            rows = [] if table is None else table.sort_by("window_start").to_pylist()
            for row in rows:
                assert row["window_end"] - row["window_start"] == row["rows"]
                kept[row["key"]] += row["numbers"]
        return kept

    def happened(self) -> Counter[str]:
        happened = Counter(checkpoints=len(self.world.checkpoints.complete))
        for home in self.world.homes.values():
            happened["losses with replay"] += sum(r.rows > 0 for r in home.executor.recoveries())
            happened["moves across nodes"] += home.executor.moves.finished_across
        return happened


def _plain(rows: pa.RecordBatch) -> list[dict]:
    """Return rows with times as numbers."""
    columns = [column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column for column in rows.columns]
    return pa.RecordBatch.from_arrays(columns, names=rows.schema.names).to_pylist()
