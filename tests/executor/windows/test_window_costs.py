"""Tasks with windows measure what rows, merges and results cost; homes add it up, also of remote tasks."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest

import dask_elastic as de
from dask_elastic.executor.control_records.state_records import INPUT_SCHEMA
from dask_elastic.executor.error_policy import ErrorPolicy
from dask_elastic.executor.primary_state import PrimaryState
from dask_elastic.executor.windows.window_logic import WindowLogic
from dask_elastic.routing.hashing import hash_columns
from dask_elastic.vocab.state_record import TimersDue
from dask_elastic.vocab.window_costs import WindowCosts, update_lookups

SHARDS, TASK = 4, 1
SCHEMA = pa.schema({"key": pa.int64(), "at": pa.timestamp("us")})


class Task:
    """A task with windows; its clock goes on by a second each time it is read."""

    def __init__(self, windows, shards=SHARDS, **options):
        topology = de.Topology("costs")
        stream = topology.source("rows", de.sources.Iterable(lambda: [], event_time="at")).key_by("key")
        stream.window(windows).compute({"rows": de.aggregate.Count()}, name="out", **options)
        self.store = PrimaryState(SHARDS, lambda hashes: (hashes % SHARDS).astype(int))
        for shard in range(shards):
            self.store.grant(shard, TASK)
        self.shards, self.reached = shards, None
        self.logic = WindowLogic(topology.operator("out"), self.store, self.store.session(TASK), SHARDS, True)
        ticks = itertools.count()
        self.logic.clock = lambda: float(next(ticks))

    def rows(self, times, separate=False):
        """Process a row of each of two keys at each time; only those of the task's shards."""
        rows = pa.record_batch([np.tile([3, 4], len(times)), np.repeat(times, 2)], schema=SCHEMA)
        hashes = hash_columns(rows, ("key",))
        if self.shards < SHARDS:
            hashes = hashes // SHARDS * SHARDS
        self.logic.process(rows, hashes, reached=self.reached, separate=separate)

    def close(self, until):
        record = pa.record_batch({"shard": np.arange(self.shards)})
        record = record.replace_schema_metadata({INPUT_SCHEMA: SCHEMA.serialize().to_pybytes()})
        batch = SimpleNamespace(record=TimersDue(until), rows=record, reached=self.reached, side=None)
        found = self.logic.fire(batch, ErrorPolicy("fail", print))
        self.reached = until
        return sum(batch.num_rows for batch in found)

    @property
    def costs(self):
        return self.store.costs()


HOPPING = [de.windows.sliding(0, "30us", "10us")]
NESTED = [de.windows.tumbling("10us"), de.windows.tumbling("20us")]


def test_rows_of_slices_are_one_pair_each_and_merges_are_counted_by_key():
    task = Task(NESTED)
    task.rows([1, 11, 12])
    assert task.costs == WindowCosts.of_batch(rows=6, pairs=6, seconds=1.0)
    assert task.close(20) == 6
    # Slices 0 and 1, and the window of both, each of two keys.
    assert task.costs._replace(rows=0, batches=0, pairs=0, squares=0, adding=0, products=0, deviation=0) == WindowCosts(
        merged=8, merging=1.0, results=6, instances=3
    )


def test_rows_of_instances_are_a_pair_for_each_and_nothing_is_merged():
    task = Task(HOPPING)
    task.rows([1, 31], separate=True)
    assert (task.costs.pairs, task.costs.squares, task.costs.products) == (12, 144, 12)
    assert task.close(40) == 8
    assert (task.costs.merged, task.costs.merging) == (0, 0)
    assert (task.costs.apart, task.costs.results, task.costs.instances, task.costs.closing) == (8, 8, 4, 1.0)


@pytest.mark.parametrize("options", [{"share": False}, {"share": False, "allowed_lateness": "5us"}])
def test_windows_that_share_nothing_have_the_costs_of_instances(options):
    task = Task(HOPPING, **options)
    task.rows([1])
    task.close(10)
    assert (task.costs.pairs, task.costs.apart, task.costs.results, task.costs.instances) == (6, 2, 2, 1)


@pytest.mark.parametrize("share", [True, False])
def test_corrections_are_counted_apart_where_they_merge_slices(share):
    task = Task(HOPPING, share=share, allowed_lateness="20us")
    task.rows([1, 21])
    task.close(30)
    before = task.costs
    task.rows([22])
    found = task.costs.since(before)
    # The clock ticks before and after the slices of both keys are merged.
    assert (found.batches, found.corrections, found.correcting) == (1, 2, 2.0 if share else 0.0)
    assert (found.pairs, found.adding) == (2 if share else 6, 1.0)
    assert found.lookups == found.looked == (update_lookups(2, 3, 0) if share else 0)
    assert found.consolidating == (1.0 if share else 0.0)


def test_corrections_without_slices_count_the_lookups_that_slices_would_take():
    task = Task(HOPPING, allowed_lateness="20us")
    task.rows([1, 21], separate=True)
    task.close(30)
    before = task.costs
    task.rows([22], separate=True)
    found = task.costs.since(before)
    assert (found.corrections, found.correcting, found.pairs, found.adding) == (2, 2.0, 4, 1.0)
    assert (found.lookups, found.looked, found.consolidating) == (update_lookups(2, 3, 0), 0, 0.0)
    before = task.costs
    task.rows([22], separate=True)
    assert task.costs.since(before).lookups == 0, "the instance has been corrected before"


def test_close_without_results_is_a_cost_of_the_plan():
    task = Task(HOPPING)
    task.rows([45])
    task.close(10)
    assert (task.costs.merging, task.costs.closing, task.costs.results) == (1.0, 0.0, 0.0)
    task.rows([46], separate=True)
    task.close(20)
    assert (task.costs.merging, task.costs.closing) == (1.0, 1.0)


def test_instance_counts_as_the_share_of_the_shards_that_closed_it():
    task = Task(NESTED, shards=1)
    task.rows([1])
    task.close(20)
    assert task.costs.instances == 2 / SHARDS
    assert type(task.costs.instances) is float, "it is sent as a plain number"
    assert task.costs.results == 4


def test_closing_by_search_counts_the_same_results_and_merged_keys():
    task = Task(NESTED)
    task.rows([1, 11, 12])
    task.logic._places._skip = 10
    assert task.close(20) == 6
    assert (task.costs.results, task.costs.instances, task.costs.merged) == (6, 3, 8)


def test_nothing_is_measured_without_a_clock():
    task = Task(NESTED)
    task.logic.clock = None
    task.rows([1])
    task.close(20)
    assert task.costs is None


def test_home_adds_the_costs_of_remote_tasks():
    task = Task(NESTED)
    task.rows([1])
    task.store.add_costs(tuple(WindowCosts.of_batch(5, 10, 2.0)))
    task.store.add_costs(())
    assert (task.costs.rows, task.costs.pairs, task.costs.adding) == (7, 12, 3.0)
