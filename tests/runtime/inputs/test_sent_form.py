"""The parts in which a client sends rows: small batches as they are, without counting their bytes exactly."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_elastic.runtime.client.sent_rows import SEND_BYTES, SEND_ROWS, SentForm
from dask_elastic.vocab.errors import BatchTooLarge, SchemaMismatch

SCHEMA = pa.schema({"n": pa.int64(), "text": pa.string(), "flag": pa.bool_()})


def batch(texts):
    count = len(texts)
    flags = [None if number % 3 else True for number in range(count)]
    return pa.record_batch([pa.array(range(count), pa.int64()), pa.array(texts, pa.string()), pa.array(flags)], SCHEMA)


@given(st.lists(st.one_of(st.none(), st.text(max_size=20)), min_size=1, max_size=40), st.integers(1, 2_000))
def test_batch_that_is_sent_uncounted_has_at_most_the_bytes_that_the_worker_takes(texts, most):
    rows = batch(texts)
    form = SentForm(SCHEMA, most)
    if rows.nbytes > most:
        with pytest.raises(BatchTooLarge):
            form.parts([rows], "source 'rows'")
    else:
        assert form.parts([rows], "source 'rows'") == [rows]


@given(st.lists(st.text(max_size=20), min_size=2, max_size=60), st.data())
def test_slices_count_by_their_own_rows(texts, data):
    rows = batch(texts)
    start = data.draw(st.integers(0, len(texts) - 1))
    part = rows.slice(start, data.draw(st.integers(1, len(texts) - start)))
    assert SentForm(SCHEMA, part.nbytes).parts([part], "source 'rows'") == [part]


def test_many_rows_and_many_bytes_are_cut():
    form = SentForm(SCHEMA)
    assert [part.num_rows for part in form.parts([batch(["a"] * (SEND_ROWS + 2))], "rows")] == [32_769, 32_769]
    assert [part.num_rows for part in form.parts([batch(["x" * (SEND_BYTES // 2)] * 4)], "rows")] == [2, 2]
    assert form.parts([batch([])], "rows") == []


def test_rows_are_cast_before_they_are_counted():
    form = SentForm(pa.schema({"n": pa.int64()}), most=8)
    assert form.parts([pa.record_batch({"n": pa.array([1], pa.int8())})], "rows")[0].nbytes == 8
    with pytest.raises(BatchTooLarge):
        form.parts([pa.record_batch({"n": pa.array([1, 2], pa.int8())})], "rows")
    with pytest.raises(SchemaMismatch):
        form.parts([pa.record_batch({"n": ["one"]})], "rows")


def test_form_has_the_newest_limit_of_the_worker():
    form = SentForm.of(SCHEMA.serialize().to_pybytes(), 10)
    assert form.limited(10) is form
    rows = batch(["a text of a few bytes"])
    with pytest.raises(BatchTooLarge):
        form.parts([rows], "rows")
    larger = form.limited(1_000)
    assert larger.schema is form.schema
    assert larger.parts([rows], "rows") == [rows]
