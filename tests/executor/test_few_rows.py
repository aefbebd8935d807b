"""Batches of a few rows take paths of their own, which must give exactly what the general paths give."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dask_elastic import aggregate as agg
from dask_elastic.executor import instructions as do
from dask_elastic.executor.executor import ElasticExecutor
from dask_elastic.executor.logic import make_logic
from dask_elastic.executor.measures import Measures
from dask_elastic.executor.piece import Piece, Receipt, pieces_by_route, routed_block, sorted_block
from dask_elastic.executor.task_queue import Work
from dask_elastic.routing.hashing import hash_columns
from dask_elastic.routing.keyspace import KeySpace
from dask_elastic.routing.split import order_by_shard, order_few_by_shard, split_by_executor
from dask_elastic.routing.table import ShardTable
from dask_elastic.state import KeyedStore, stored_keys
from dask_elastic.state.disk import DiskStorage, UnnamedFiles
from dask_elastic.topology import Compute
from dask_elastic.vocab.batch import FEW_ROWS, Batch
from dask_elastic.vocab.errors import NumericOverflow
from dask_elastic.vocab.identity import ExecutorId

SOURCE = ExecutorId("source", 0)
SHARDS = 8
GREAT = 2**63 - 1
LIMITS = [
    "dask_elastic.executor.piece.FEW_ROWS",
    "dask_elastic.executor.task_queue.FEW_ROWS",
    "dask_elastic.state.session.FEW_ROWS",
    "dask_elastic.topology.aggregates.integer_sum.FEW_ROWS",
    "dask_elastic.routing.scalar_hashing.FEW_KEYS",
]


@contextmanager
def general_paths() -> Iterator[None]:
    """Treat batches of a few rows like large ones."""
    patches = [mock.patch(name, -1) for name in LIMITS]
    for patch in patches:
        patch.start()
    try:
        yield
    finally:
        for patch in patches:
            patch.stop()


def aggregates() -> dict[str, agg.Aggregate]:
    return {
        "rows": agg.Count(),
        "count": agg.Count("i"),
        "sum": agg.Sum("i"),
        "small": agg.Sum("small"),
        "length": agg.Sum(lambda batch: pc.binary_length(batch["s"]), columns=["s"]),
        "fsum": agg.Sum("f"),
        "mean": agg.Mean("f"),
        "min": agg.Min("i"),
        "max": agg.Max("f"),
        "top": agg.TopK("small", 2),
        "distinct": agg.DistinctCount("s"),
        "words": agg.custom(
            ["s"],
            init=list,
            add=lambda acc, rows: [*acc, *rows["s"].to_pylist()],
            merge=lambda a, b: a + b,
            result=lambda acc: "|".join(str(word) for word in acc),
            type=pa.string(),
        ),
    }


KEY_TYPES = {pa.int64(): st.integers(-2, 3), pa.string(): st.sampled_from(["a", "b", "a key of some length", "", "c"])}
VALUES = st.tuples(
    st.none() | st.integers(-GREAT - 1, GREAT) | st.integers(-9, 9),
    st.none() | st.integers(-100, 100),
    st.none() | st.floats(-1e6, 1e6) | st.just(float("nan")),
    st.none() | st.text("abc", max_size=3),
)


@st.composite
def streams(draw: Any) -> list[pa.RecordBatch]:
    """Draw batches of a few rows, with keys that repeat within a batch and between batches."""
    key_type = draw(st.sampled_from([*KEY_TYPES]))
    schema = pa.schema({"key": key_type, "i": pa.int64(), "small": pa.int16(), "f": pa.float64(), "s": pa.string()})
    rows = st.lists(st.tuples(st.none() | KEY_TYPES[key_type], VALUES), min_size=1, max_size=FEW_ROWS)
    made = []
    for drawn in draw(st.lists(rows, min_size=1, max_size=6)):
        columns = zip(*((key, *values) for key, values in drawn), strict=True)
        arrays = [pa.array(list(column), t) for column, t in zip(columns, schema.types, strict=True)]
        made.append(pa.RecordBatch.from_arrays(arrays, schema=schema))
    return made


@pytest.mark.parametrize("on_disk", [False, True], ids=["memory", "disk"])
@pytest.mark.parametrize("many_rows", [4_096, 1], ids=["grouped", "counted"])
def test_keys_in_another_order_than_at_first_have_their_own_results(monkeypatch, tmp_path, on_disk, many_rows):
    if on_disk:
        files = UnnamedFiles(tmp_path)
        monkeypatch.setattr(stored_keys, "Storage", lambda make_index: DiskStorage(files))
    monkeypatch.setattr("dask_elastic.state.session.MANY_ROWS", many_rows)
    store = KeyedStore(1, lambda hashes: np.zeros(len(hashes), np.intp))
    store.grant(0, 0)
    logic = make_logic(Compute("sums", ("key",), {"sum": agg.Sum("i")}), store, store.session(0), emits=True)
    keys = pa.array(range(2 * FEW_ROWS))
    for order in (keys, keys[::-1].take(keys)):
        rows = pa.record_batch({"key": order, "i": order})
        (made,) = logic.process(rows, hash_columns(rows, ["key"]))
    assert made["sum"].equals(pc.multiply(made["key"], 2))


def outcome(batches: list[pa.RecordBatch]) -> tuple[list[pa.RecordBatch], list[Any], str]:
    """Return the outputs, the state and the error of running aggregates over some batches."""
    store = KeyedStore(1, lambda hashes: np.zeros(len(hashes), np.intp))
    store.grant(0, 0)
    logic = make_logic(Compute("measured", ("key",), aggregates()), store, store.session(0), emits=True)
    outputs: list[pa.RecordBatch] = []
    failed = ""
    try:
        for batch in batches:
            outputs += logic.process(batch, hash_columns(batch, ["key"]), 0.0)
    except NumericOverflow as error:
        failed = str(error)
    for rows in outputs:
        rows.validate(full=True)
    state = store.extract()
    assert state is not None
    return outputs, state.to_pylist(), failed


@settings(deadline=None, max_examples=120)
@given(streams())
def test_aggregates_over_few_rows_equal_the_general_path(batches: list[pa.RecordBatch]) -> None:
    found = outcome(batches)
    with general_paths():
        expected = outcome(batches)
    assert repr(found[0]) == repr(expected[0])
    assert [rows.schema for rows in found[0]] == [rows.schema for rows in expected[0]]
    assert repr([rows.to_pylist() for rows in found[0]]) == repr([rows.to_pylist() for rows in expected[0]])
    assert repr(found[1]) == repr(expected[1])
    assert found[2] == expected[2]


def test_overflow_of_a_sum_over_few_rows_changes_no_state() -> None:
    rows = pa.record_batch({"key": [1, 1], "i": [GREAT, -5], "small": [1, 2], "f": [0.5, 0.5], "s": ["a", "b"]})
    rows = rows.cast(
        pa.schema({"key": pa.int64(), "i": pa.int64(), "small": pa.int16(), "f": pa.float64(), "s": pa.string()})
    )
    outputs, state, failed = outcome([rows, rows])
    assert len(outputs) == 1
    assert "Sum('i')" in failed
    assert state == outcome([rows])[1]


HASHES = st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=FEW_ROWS).map(lambda v: np.array(v, dtype=np.uint64))


@st.composite
def tables(draw: Any) -> ShardTable:
    table = ShardTable.initial(SHARDS, range(draw(st.integers(1, 3))))
    for shard in draw(st.sets(st.integers(0, SHARDS - 1), max_size=2)):
        table = table.pause(shard)
    return table


def rows_of(hashes: np.ndarray) -> pa.RecordBatch:
    return pa.record_batch({"row": np.arange(len(hashes))})


@settings(deadline=None)
@given(HASHES, tables())
def test_order_of_few_rows_equals_general_order_without_empty_shards(hashes: np.ndarray, table: ShardTable) -> None:
    space = KeySpace(1, SHARDS)
    shards = space.shards_of_few(hashes)
    assert shards == space.shard_of(hashes).tolist()
    few, general = order_few_by_shard(shards, table), order_by_shard(hashes, space, table)
    assert few.order.tolist() == general.order.tolist()
    filled = np.flatnonzero(np.diff(general.bounds))
    assert few.shards.tolist() == general.shards[filled].tolist()
    assert few.bounds.tolist() == [*general.bounds[filled].tolist(), len(hashes)]
    owners = set(table.owner[shards].tolist())
    expected = owners.pop() if len(owners) == 1 and not table.paused[shards].any() else None
    assert table.task_of(shards) == expected


def parts(pieces: Iterator[tuple[int, int, Piece]]) -> list[tuple[int, list[int], list[int]]]:
    """Return route, row numbers and rows of each shard of the pieces."""
    space = KeySpace(1, SHARDS)
    return [
        (route, piece.block.part(piece.start, piece.stop)[0]["row"].to_pylist(), piece.rows_by_shard(space).tolist())
        for route, _, piece in pieces
    ]


@settings(deadline=None)
@given(HASHES, tables(), tables(), st.integers(0, SHARDS - 1))
def test_pieces_of_few_rows_equal_those_of_the_general_path(
    hashes: np.ndarray, before: ShardTable, after: ShardTable, shard: int
) -> None:
    space, rows = KeySpace(1, SHARDS), rows_of(hashes)

    def cut() -> list[Any]:
        block = sorted_block(rows, hashes, space, before)
        receipt = Receipt(SOURCE, 100, len(hashes), 0.0, 0.0)
        stays, moved = Piece(block, 0, len(hashes), receipt).without(shard)
        moving = [] if moved is None else [(0, shard, moved)]
        return [
            parts(pieces_by_route(block, receipt, after)),
            parts(iter([(0, 0, piece) for piece in stays])),
            parts(iter(moving)),
        ]

    found = cut()
    with general_paths():
        assert found == cut()


@settings(deadline=None)
@given(HASHES, tables())
def test_block_of_few_rows_of_one_task_keeps_their_order(hashes: np.ndarray, table: ShardTable) -> None:
    space = KeySpace(1, SHARDS)
    block = routed_block(rows_of(hashes), hashes, space, table)
    one_task = table.task_of(space.shard_of(hashes).tolist()) is not None
    assert (block.bounds is None) == one_task
    assert block.row_shards == space.shard_of(block.hashes).tolist()
    if one_task:
        assert block.rows["row"].to_pylist() == [*range(len(hashes))]


@settings(deadline=None)
@given(st.lists(st.tuples(HASHES, st.booleans()), min_size=1, max_size=4))
def test_rows_by_shard_of_joined_pieces_are_those_of_all_rows(drawn: list[tuple[np.ndarray, bool]]) -> None:
    space, table = KeySpace(1, SHARDS), ShardTable.initial(SHARDS, [0])
    pieces = []
    for hashes, in_large_block in drawn:
        # A piece of a few rows may also be cut out of a block of many.
        padded = np.concatenate([hashes, np.zeros(40, np.uint64)]) if in_large_block else hashes
        block = routed_block(rows_of(padded), padded, space, table)
        pieces.append(Piece(block, 0, len(hashes), Receipt(SOURCE, 100, len(padded), 0.0, 0.0)))
    work = Work(pieces)
    every = np.concatenate([hashes for hashes, _ in drawn])
    expected = np.bincount(space.shard_of(every), minlength=SHARDS)
    assert work.rows_by_shard(space).tolist() == expected.tolist()
    counted = work.by_shard(space)
    assert isinstance(counted, list) == (len(every) <= FEW_ROWS)
    by_rows, dense = Measures(SHARDS), Measures(SHARDS)
    by_rows.settled(work, counted, 0.5, 1.0)
    dense.settled(work, work.rows_by_shard(space), 0.5, 1.0)
    np.testing.assert_allclose(by_rows.loads.loads(1.0), dense.loads.loads(1.0))
    np.testing.assert_allclose(by_rows.loads.rows, dense.loads.rows)


def test_few_rows_split_before_a_move_are_routed_by_the_current_table() -> None:
    executor = ElasticExecutor(ExecutorId("per_key", 0), KeySpace(1, SHARDS), 0, {0: 2}, [SOURCE])
    rows = pa.record_batch({"key": [0, 2]})
    batch = Batch(rows, np.array([0, 2], np.uint64), 0.0)
    block = executor.split(batch)
    assert block.bounds is None
    executor.routes.table = executor.routes.table.pause(2).moved(2, 1)
    assert executor.take(0) is None
    assert executor.take(1) is None
    woken = executor.accept(block, SOURCE, batch, 10, 0.0)
    assert woken == [do.Wake(0), do.Wake(1)]
    taken = [executor.take(task) for task in (0, 1)]
    assert [item[1].batch().rows["key"].to_pylist() for item in taken if item is not None] == [[0], [2]]  # type: ignore[union-attr]


@pytest.mark.parametrize("executors", [2, 3])
@settings(deadline=None)
@given(hashed=st.integers(0, 2**64 - 1))
def test_single_row_goes_to_the_executor_of_its_hash(executors: int, hashed: int) -> None:
    hashes, space = np.array([hashed], np.uint64), KeySpace(executors, SHARDS)
    [(executor, _, _)] = split_by_executor(rows_of(hashes), hashes, space)
    assert executor == int(space.executor_of(hashes)[0])


def test_results_do_not_keep_a_large_batch_or_message_alive() -> None:
    rows = pa.record_batch({"key": range(5_000), "payload": [b"-" * 100] * 5_000})
    message = rows.slice(0, 3).serialize()
    received = pa.ipc.read_record_batch(message, rows.schema)
    for few in (rows.slice(7, 2), received):
        store = KeyedStore(1, lambda hashes: np.zeros(len(hashes), np.intp))
        store.grant(0, 0)
        logic = make_logic(Compute("counted", ("key",), {"rows": agg.Count()}), store, store.session(0), emits=True)
        [made] = logic.process(few, hash_columns(few, ["key"]), 0.0)
        assert made["key"].to_pylist() == few["key"].to_pylist()
        assert made.get_total_buffer_size() < 100
        assert all(buffer is None or buffer.parent is None for buffer in made["key"].buffers())
