"""The search for rows on which user code raises."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_elastic.executor.row_search import RowSearch
from dask_elastic.vocab.errors import StateError


class Calls:
    """Processes ranges of rows, and raises for those that contain a bad one."""

    def __init__(self, bad):
        self.bad = {*bad}
        self.ranges, self.processed, self.skipped = [], [], []

    def process(self, start, stop):
        self.ranges.append((start, stop))
        for row in range(start, stop):
            if row in self.bad:
                raise ValueError(f"row {row}")
        self.processed += range(start, stop)

    def skip(self, row, error):
        assert str(error) == f"row {row}"
        self.skipped.append(row)


@given(st.lists(st.lists(st.booleans(), max_size=60), max_size=5))
def test_all_rows_but_the_failing_ones_are_processed_once_and_in_order(batches):
    search = RowSearch()
    for batch in batches:
        bad = [row for row, is_bad in enumerate(batch) if is_bad]
        calls = Calls(bad)
        search.run(calls.process, calls.skip, len(batch))
        assert calls.skipped == bad
        assert calls.processed == [row for row, is_bad in enumerate(batch) if not is_bad]


@pytest.mark.parametrize(("share", "most"), [(0.0, 0.001), (0.01, 0.11), (0.1, 0.6), (0.31, 1.1), (1.0, 1.02)])
def test_calls_per_row_are_few_at_any_share_of_failing_rows(share, most):
    random, search, count = np.random.default_rng(1), RowSearch(), 0
    for _ in range(5):
        calls = Calls(np.flatnonzero(random.random(2_000) < share).tolist())
        search.run(calls.process, calls.skip, 2_000)
        count += len(calls.ranges)
    assert count <= most * 10_000


def test_whole_batches_are_run_again_soon_after_failing_rows_have_ended():
    search = RowSearch()
    bad = Calls(range(0, 3_000, 3))
    search.run(bad.process, bad.skip, 3_000)
    for _ in range(5):
        good = Calls(())
        search.run(good.process, good.skip, 3_000)
    assert good.ranges == [(0, 3_000)]


def test_rows_that_fail_only_together_are_processed():
    together = []

    def process(start, stop):
        if start <= 3 and stop > 5:
            raise ValueError("three and five")
        together.append((start, stop))

    RowSearch().run(process, lambda row, error: pytest.fail("no row fails on its own"), 8)
    assert [row for start, stop in together for row in range(start, stop)] == [*range(8)]


def test_error_of_the_engine_is_raised_at_once():
    def process(start, stop):
        raise StateError("no shard")

    with pytest.raises(StateError):
        RowSearch().run(process, lambda *_: None, 8)
