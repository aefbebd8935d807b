"""Seeded simulations of a job whose sessions are corrected, under disturbances, with its expected results."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from itertools import pairwise

from window_job import TIME, expected
from window_scenario import WindowScenario, WindowSimulation

from dask_elastic.simulator import Disturber
from dask_elastic.topology.windowing import SessionWindow, Windowing

GAP = 12

WINDOWINGS = (
    Windowing((SessionWindow(GAP),), (TIME,), allowed_lateness=15),
    Windowing((SessionWindow(GAP),), (TIME,), emit="updates"),
    Windowing((SessionWindow(GAP),), (TIME,), allowed_lateness=60),
    Windowing((SessionWindow(GAP),), (TIME,), allowed_lateness=30, emit="updates"),
)


@dataclass(frozen=True)
class SessionScenario(WindowScenario):
    """A `WindowScenario` with sessions that have several results."""

    @property
    def windowing(self) -> Windowing:
        return WINDOWINGS[self.seed % len(WINDOWINGS)]

    def _simulation(self, batches, shards, random, options) -> SessionSimulation:
        made = super()._simulation(batches, shards, random, options)
        return SessionSimulation(made.world, made.batches, made.disturber, shards, self.place, self.windowing)

    def continued(self, first, checkpoint) -> SessionSimulation:
        made = super().continued(first, checkpoint)
        return SessionSimulation(
            made.world, first.batches, Disturber(made.world, ()), first.shards, self.place, self.windowing
        )


@dataclass
class SessionSimulation(WindowSimulation):
    """One simulation; what is not withdrawn at the end are the sessions of all rows, and never do two overlap."""

    def _check_results(self, emitted, wanted) -> None:
        left = {instance: rows[-1] for instance, rows in emitted.items() if not rows[-1]["withdrawn"]}
        assert {instance: row["numbers"] for instance, row in left.items()} == {
            instance: sorted(numbers) for instance, numbers in wanted.all.items()
        }
        for instance, rows in emitted.items():
            self._check_instance(instance, rows, wanted)
        self._check_order()

    def _check_instance(self, instance, results, wanted) -> None:
        assert not any(row["withdrawn"] for row in results[:-1]), instance
        last = results[-1]
        results = results[:-1] if last["withdrawn"] else results
        revisions = [row["revision"] for row in results]
        closed = [revision for revision in revisions if revision is not None]
        assert revisions == [None] * (len(results) - len(closed)) + [*range(len(closed))], (instance, revisions)
        assert self.windowing.emit == "updates" or closed, instance
        if last["withdrawn"]:
            assert last["revision"] == (len(closed) or None), (instance, last)
            assert [last[name] for name in ("rows", "sum", "most", "numbers")] == [None] * 4
        for before, after in pairwise(results):
            assert set(before["numbers"]) <= set(after["numbers"]), instance

    def _check_order(self) -> None:
        """Check that a result is withdrawn before one of the same rows appears."""
        present: dict[str, dict[tuple, set[int]]] = defaultdict(dict)
        for (key, *bounds), row in self._received():
            known = present[key]
            if row["withdrawn"]:
                assert known.pop(tuple(bounds), None) is not None, f"{key} {bounds} was not there"
                continue
            known.pop(tuple(bounds), None)
            assert not any(numbers & set(row["numbers"]) for numbers in known.values()), (key, bounds)
            known[tuple(bounds)] = set(row["numbers"])

    def happened(self) -> Counter[str]:
        happened = super().happened()
        happened["withdrawn"] = sum(row["withdrawn"] for _, row in self._received())
        happened["sessions"] = len(expected(self.batches, self.windowing).all)
        return happened
