"""The plan that the cost model chooses for windows with updates takes no more CPU time than the other one.

The clock counts work instead of time: so much for each batch, each row and cell that an aggregate updates, each slot
that is looked up, each key that is merged, and each result.
"""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest

import dask_elastic as de
from dask_elastic.executor.control_records.state_records import INPUT_SCHEMA
from dask_elastic.executor.error_policy import ErrorPolicy
from dask_elastic.executor.primary_state import PrimaryState
from dask_elastic.executor.windows.added_rows import AddedRows
from dask_elastic.executor.windows.rehearsed_rows import SHARE, RehearsedRows
from dask_elastic.executor.windows.running_merges import RunningMerges
from dask_elastic.executor.windows.window_logic import WindowLogic
from dask_elastic.routing.hashing import hash_columns
from dask_elastic.state.session import Session
from dask_elastic.topology.aggregates.bundle import Bundle
from dask_elastic.topology.windowing import WINDOW_END, WINDOW_START
from dask_elastic.vocab.state_record import TimersDue
from dask_elastic.vocab.window_costs import update_lookups
from dask_elastic.windows.sharing_choice import SAVING
from dask_elastic.windows.unit_costs import PartMeasure, completed, measured_costs
from dask_elastic.windows.window_plan import plan_windows, window_load

SHARDS, TASK, BATCHES = 4, 1, 36
SCHEMA = pa.schema({"key": pa.int64(), "at": pa.timestamp("us")})
AGGREGATES = {"rows": de.aggregate.Count()}
WINDOWS = {
    "2 overlap": [de.windows.sliding(0, "20us", "10us")],
    "12 overlap": [de.windows.sliding(0, "120us", "10us")],
    "60 overlap": [de.windows.sliding(0, "600us", "10us")],
    "nested": [de.windows.tumbling("10us"), de.windows.tumbling("20us"), de.windows.tumbling("60us")],
}
US = 1e-6
CHEAP, DEAR = 0.02 * US, 2 * US
"""Seconds to merge a key: of counts, and of values that are Python objects."""


class Work:
    """A clock that counts work, in seconds."""

    def __init__(self, monkeypatch, merge, noise=0.0):
        self.seconds, random = 0.0, np.random.default_rng(5)
        self.costs(
            monkeypatch,
            AddedRows,
            "located",
            lambda self, bound, rows, *_: (100 + noise * random.random()) * US + 0.02 * US * len(rows),
        )
        self.costs(
            monkeypatch, Bundle, "update", lambda self, current, rows, grouping: 0.02 * US * len(grouping.ordinals)
        )
        self.costs(monkeypatch, Session, "gather", lambda self, located, *_: 0.1 * US * len(located))
        self.costs(monkeypatch, Session, "apply", lambda self, located, *_: 0.1 * US * len(located))
        self.costs(monkeypatch, Session, "values_at", lambda self, slots, *_: 0.05 * US * len(slots))
        self.costs(monkeypatch, PrimaryState, "find", lambda self, hashes, checks: 0.03 * US * len(hashes))
        self.costs(monkeypatch, Bundle, "merge", lambda self, left, right: merge * len(left[0]))
        self.costs(monkeypatch, RunningMerges, "of", lambda self, *_: 20 * US)
        self.costs(monkeypatch, Bundle, "results", lambda self, current: 0.02 * US * len(current[0]))

    def costs(self, monkeypatch, kind, name, cost):
        """Let a method take its time."""
        real = getattr(kind, name)

        def timed(*args, **options):
            self.seconds += cost(*args, **options)
            return real(*args, **options)

        monkeypatch.setattr(kind, name, timed)


def measured(work, windows, rows, keys, share):
    """Return the seconds of a task with one plan, what it has measured, its windows, and its results."""
    topology = de.Topology("updates")
    stream = topology.source("rows", de.sources.Iterable(lambda: [], event_time="at")).key_by("key")
    stream.window(WINDOWS[windows]).compute(AGGREGATES, name="out", emit="updates", share=share)
    operator, random = topology.operator("out"), np.random.default_rng(3)
    store = PrimaryState(SHARDS, lambda hashes: (hashes % SHARDS).astype(int))
    for shard in range(SHARDS):
        store.grant(shard, TASK)
    logic = WindowLogic(operator, store, store.session(TASK), SHARDS, True)
    logic.clock = lambda: work.seconds
    record = pa.record_batch({"shard": np.arange(SHARDS)})
    record = record.replace_schema_metadata({INPUT_SCHEMA: SCHEMA.serialize().to_pybytes()})
    began, found = work.seconds, []
    for reached, until in pairwise([None, *range(5, 5 * BATCHES, 5)]):
        count = int(random.integers(rows // 2, rows + rows // 2, endpoint=True))
        times = np.sort(random.integers(until - 5, until, count))
        batch = pa.record_batch([random.integers(0, keys, count), times], schema=SCHEMA)
        found += logic.process(batch, hash_columns(batch, ("key",)), reached=reached)
        fired = SimpleNamespace(record=TimersDue(until), rows=record, reached=reached, side=None)
        found += logic.fire(fired, ErrorPolicy("fail", print))
    by = [(name, "ascending") for name in ("key", WINDOW_START, WINDOW_END, "revision", "rows")]
    return work.seconds - began, store.costs(), operator.windowing, pa.Table.from_batches(found).sort_by(by)


@pytest.mark.parametrize("merge", [CHEAP, DEAR])
@pytest.mark.parametrize("windows", ["2 overlap", "12 overlap", "nested"])
def test_either_plan_predicts_which_one_takes_less(windows, merge, monkeypatch):
    work = Work(monkeypatch, merge)
    better = set()
    for rows, keys in ((20, 3), (20, 1000), (300, 3), (300, 200), (6000, 3), (6000, 200)):
        both = {share: measured(work, windows, rows, keys, share) for share in (True, False)}
        took = {"slices": both[True][0], "instances": both[False][0]}
        assert both[True][3].equals(both[False][3])
        better.add(min(took, key=took.get))
        slices, instances = (measured_costs([PartMeasure(None, both[share][1])]) for share in (True, False))
        windowing, rate = both[True][2], slices.rows / (5e-6 * BATCHES)
        # Jobs begin with slices; instances measure no lookups.
        for found, units in ((slices, slices.units), (instances, completed(instances.units, slices.units))):
            load = window_load(rate, found.keys, units, found.other, found.corrected, found.lookups)
            chosen = plan_windows(windowing, load).partials
            assert took[chosen] * (1 - SAVING) <= min(took.values()), (rows, keys, took, chosen)
    assert merge == DEAR or better == {"slices", "instances"}, "the choice matters"


def test_both_plans_count_the_same_updates_and_lookups(monkeypatch):
    work = Work(monkeypatch, CHEAP)
    _, slices, _, _ = measured(work, "nested", 300, 50, True)
    _, instances, _, _ = measured(work, "nested", 300, 50, False)
    assert slices.updates == instances.updates > 0
    assert slices.looked == slices.lookups == pytest.approx(instances.lookups, rel=0.1)
    assert (instances.looked, instances.consolidating) == (0, 0)
    assert slices.consolidating > 0
    assert slices.emitting == pytest.approx(instances.emitting, rel=0.01)


def test_seconds_of_updates_are_not_those_of_adding_rows(monkeypatch):
    work = Work(monkeypatch, CHEAP)
    took, costs, _, _ = measured(work, "12 overlap", 300, 50, True)
    assert costs.seconds == pytest.approx(took)
    assert costs.adding == pytest.approx(costs.batches * 100 * US, rel=0.3)


def test_lookups_are_of_all_slices_of_the_instances_of_a_batch(monkeypatch):
    work = Work(monkeypatch, CHEAP)
    _, costs, _, _ = measured(work, "2 overlap", 300, 3, True)
    # A batch is in one slice, and in two instances, which have three slices.
    assert costs.lookups == costs.batches * update_lookups(3, 3, 2)


def plan_by(costs, windowing):
    """Return the plan that is chosen by what was measured."""
    found = measured_costs([PartMeasure(None, costs)])
    rate = found.rows / (5e-6 * BATCHES)
    load = window_load(rate, found.keys, found.units, found.other, found.corrected, found.lookups)
    return plan_windows(windowing, load).partials


@pytest.mark.parametrize("rehearses", [True, False])
def test_some_tens_of_small_batches_tell_that_instances_take_less(rehearses, monkeypatch):
    if not rehearses:
        monkeypatch.setattr(RehearsedRows, "of", lambda *args: None)
    # A batch takes up to twice as long as another one, and the rows only a few percent of it.
    work = Work(monkeypatch, CHEAP, noise=100)
    slices, instances = (measured(work, "60 overlap", 100, 10, share) for share in ("auto", False))
    assert slices[3].equals(instances[3])
    assert slices[0] > 1.5 * instances[0]
    _, costs, windowing, _ = slices
    assert costs.batches < 40
    assert plan_by(costs, windowing) == ("instances" if rehearses else "slices")


def test_many_rows_of_a_key_in_a_batch_keep_slices(monkeypatch):
    work = Work(monkeypatch, CHEAP, noise=100)
    slices, instances = (measured(work, "60 overlap", 2_000, 10, share) for share in ("auto", False))
    assert slices[0] < instances[0] / 1.5
    assert plan_by(slices[1], slices[2]) == "slices"


def test_rehearsals_take_a_small_share_of_the_time(monkeypatch):
    work = Work(monkeypatch, CHEAP)
    real, spent = RehearsedRows._measured, []

    def timed(self, *args):
        before = work.seconds
        found = real(self, *args)
        spent.append(work.seconds - before)
        return found

    monkeypatch.setattr(RehearsedRows, "_measured", timed)
    took, _, _, _ = measured(work, "60 overlap", 300, 10, "auto")
    assert len(spent) > 1
    assert sum(spent[:-1]) < SHARE * took
