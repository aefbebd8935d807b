from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from dask_elastic import aggregate as agg
from dask_elastic.executor.error_policy import ErrorPolicy
from dask_elastic.executor.logic import AggregateLogic
from dask_elastic.executor.piece import Block, Receipt, pieces_by_route, sorted_block
from dask_elastic.executor.task_queue import Work
from dask_elastic.meters import FunctionCosts
from dask_elastic.routing.hashing import check_columns, checks_of, hash_columns
from dask_elastic.routing.keyspace import KeySpace
from dask_elastic.routing.table import ShardTable
from dask_elastic.state.store import KeyedStore
from dask_elastic.topology.operators import Compute
from dask_elastic.vocab.chosen_rows import ChosenRows
from dask_elastic.vocab.errors import TopologyError
from dask_elastic.vocab.identity import ExecutorId

SPACE = KeySpace(1, 16)
TABLE = ShardTable.initial(16, [0, 1, 2])
ROWS = 9_000
NUMBERS = np.random.default_rng(1).integers(0, 300, ROWS)
KEYS = {
    "integers": pa.array(NUMBERS),
    "integers and nulls": pa.array(NUMBERS, mask=NUMBERS == 7),
    "times beyond nanoseconds": pa.array(NUMBERS * 10**9, pa.timestamp("s")),
    "short strings": pa.array([f"N{n}" for n in NUMBERS]),
    "long strings": pa.array([f"plane-{n:06d}" for n in NUMBERS]),
    "strings of one hash word": pa.array([f"{'long-' * (n % 2)}{n}" for n in NUMBERS]),
    "bytes of fixed size": pa.array([int(n).to_bytes(4, "big") for n in NUMBERS], pa.binary(4)),
}


class Costs:
    """Prefers whole batches always."""

    def __init__(self) -> None:
        self.whole = 0

    def now(self) -> float:
        return 0.0

    def prefers_all(self, function: object, chosen: int, rows: int) -> bool:
        return True

    def note_copied(self, function: object, rows: int, copying: float, evaluating: float) -> None:
        pass

    def note_all(self, function: object, rows: int, evaluating: float) -> None:
        self.whole += rows


def batch_of(key: pa.Array) -> pa.RecordBatch:
    payload = pa.array([b"x" * (row % 50) for row in range(ROWS)])
    value = pa.array(np.arange(ROWS), mask=np.arange(ROWS) % 11 == 0)
    return pa.record_batch({"key": key, "value": value, "payload": payload}).slice(3)


def works(rows: pa.RecordBatch, keys: list[str]) -> list[Work]:
    block = sorted_block(rows, hash_columns(rows, keys), SPACE, TABLE)
    receipt = Receipt(ExecutorId("source", 0), 1, rows.num_rows, 0.0, 0.0)
    return [Work([piece]) for _, _, piece in pieces_by_route(block, receipt, TABLE)]


def logics(aggregates: dict[str, agg.Aggregate], keys: tuple[str, ...] = ("key",)) -> list[AggregateLogic]:
    store = KeyedStore(SPACE.shards, SPACE.shard_of)
    for shard, task in enumerate(TABLE.owner.tolist()):
        store.grant(shard, task)
    operator = Compute("planes", keys, aggregates)
    return [AggregateLogic(operator, store, store.session(task), emits=True) for task in range(3)]


def length(rows: pa.RecordBatch) -> pa.Array:
    return pc.binary_length(rows["payload"])


AGGREGATES = {
    "rows": agg.Count(),
    "values": agg.Count("value"),
    "total": agg.Sum("value"),
    "bytes": agg.Sum(length, columns=["payload"]),
    "last": agg.Max("payload"),
}


def test_chosen_rows_read_as_their_copy():
    rows = batch_of(KEYS["integers and nulls"])
    chosen = ChosenRows(rows, np.arange(1, ROWS - 3, 2))
    copied = rows.take(pa.array(np.arange(1, ROWS - 3, 2)))
    assert chosen.copied() == copied
    assert len(chosen) == chosen.num_rows == copied.num_rows
    assert chosen.schema == copied.schema
    assert chosen.column("value") == chosen.column(1) == copied["value"]
    assert chosen.select(["payload", "key"]) == copied.select(["payload", "key"])
    assert chosen.take(pa.array([5, 2])) == copied.take(pa.array([5, 2]))
    assert chosen.slice(10, 20) == copied.slice(10, 20)
    assert chosen.column_at(2, np.array([7, 0])) == copied["payload"].take(pa.array([7, 0]))
    assert chosen.nbytes == pytest.approx(rows.nbytes / 2, rel=0.01)


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("costs", [None, Costs()])
def test_results_of_chosen_rows_equal_those_of_copies(key: str, costs: Costs | None):
    rows = batch_of(KEYS[key])
    expected, found = logics(AGGREGATES), logics(AGGREGATES)
    for _ in range(2):
        for task, work in enumerate(works(rows, ["key"])):
            copied, chosen = work.batch(), work.batch(copied=False)
            assert isinstance(chosen.rows, ChosenRows)
            chosen.rows.costs = costs
            (of_copies,) = expected[task].process(copied.rows, copied.hashes)
            (of_chosen,) = found[task].process(chosen.rows, chosen.hashes)
            assert of_chosen == of_copies
    assert costs is None or costs.whole >= 6 * rows.num_rows
    assert pa.Table.from_batches([found[0].store.rows()[0]]) == pa.Table.from_batches([expected[0].store.rows()[0]])


def test_two_key_columns_of_chosen_rows_are_checked():
    rows = batch_of(KEYS["long strings"])
    expected, found = logics(AGGREGATES, ("key", "value")), logics(AGGREGATES, ("key", "value"))
    for task, work in enumerate(works(rows, ["key", "value"])):
        copied, chosen = work.batch(), work.batch(copied=False)
        assert found[task].process(chosen.rows, chosen.hashes) == expected[task].process(copied.rows, copied.hashes)


def test_function_that_fails_on_rows_of_another_task_is_evaluated_on_own_rows():
    def checked(rows: pa.RecordBatch) -> pa.Array:
        if pc.max(rows["value"]).as_py() is not None and pc.max(rows["value"]).as_py() > 5_000:
            raise ValueError("too large")
        return rows["value"]

    rows = pa.record_batch({"key": NUMBERS, "value": np.where(SPACE.shard_of(NUMBERS.view(np.uint64)) == 0, 9_000, 1)})
    hashes = NUMBERS.view(np.uint64)
    block = sorted_block(rows, hashes, SPACE, TABLE)
    receipt = Receipt(ExecutorId("source", 0), 1, rows.num_rows, 0.0, 0.0)
    all_logics = logics({"total": agg.Sum(checked, columns=["value"])})
    outcomes = []
    for task, _, piece in pieces_by_route(block, receipt, TABLE):
        batch = Work([piece]).batch(copied=False)
        batch.rows.costs = Costs()
        try:
            all_logics[task].process(batch.rows, batch.hashes)
            outcomes.append("processed")
        except ValueError:
            outcomes.append("failed")
    assert outcomes == ["failed", "processed", "processed"]


def test_failing_rows_of_chosen_rows_are_skipped():
    def checked(rows: pa.RecordBatch) -> pa.Array:
        if pc.any(pc.equal(rows["value"], 4_001)).as_py():
            raise ValueError("a bad value")
        return rows["value"]

    batch = pa.record_batch({"key": NUMBERS, "value": np.arange(ROWS)})
    all_logics, letters = logics({"total": agg.Sum(checked, columns=["value"]), "rows": agg.Count()}), []
    policy = ErrorPolicy("skip", letters.append)
    for task, work in enumerate(works(batch, ["key"])):
        chosen = work.batch(copied=False)
        rows, hashes = chosen.rows, chosen.hashes
        rows.costs = Costs()

        def run(start, stop, errors, rows=rows, hashes=hashes, logic=all_logics[task]):
            part = rows if (start, stop) == (0, rows.num_rows) else rows.slice(start, stop - start)
            return logic.process(part, hashes[start:stop])

        policy.run("planes", run, rows)
    assert [letter.rows.to_pylist() for letter in letters] == [[{"key": NUMBERS[4_001].item(), "value": 4_001}]]
    _, values = all_logics[0].store.rows()
    assert sum(values[0].tolist()) == sum(range(ROWS)) - 4_001
    assert sum(values[2].tolist()) == ROWS - 1


def test_function_with_too_few_values_for_a_whole_batch_is_an_error():
    (work, *_) = works(batch_of(KEYS["integers"]), ["key"])
    (logic, *_) = logics(
        {"bytes": agg.Sum(lambda rows: pa.array([1] * (len(rows) and 1), pa.int64()), columns=["payload"])}
    )
    batch = work.batch(copied=False)
    batch.rows.costs = Costs()
    with pytest.raises(TopologyError, match="one per row"):
        logic.process(batch.rows, batch.hashes)


def test_aggregate_of_a_user_gets_a_copy_of_the_rows():
    bound_rows = []

    class Rows(agg.Aggregate):
        columns = ("value",)

        def bind(self, schema: pa.Schema) -> agg.BoundAggregate:
            bound = agg.Count().bind(schema)

            class Bound(type(bound)):
                reads_chosen = False

                def update(self, current, rows, grouping):
                    bound_rows.append(rows)
                    return super().update(current, rows, grouping)

            return Bound(None)

    (work, *_) = works(batch_of(KEYS["integers"]), ["key"])
    (logic, *_) = logics({"rows": Rows()})
    batch = work.batch(copied=False)
    logic.process(batch.rows, batch.hashes)
    assert bound_rows == [work.batch().rows]
    assert isinstance(bound_rows[0], pa.RecordBatch)


@pytest.mark.parametrize("key", KEYS)
def test_checks_of_chosen_rows_equal_those_of_copies(key: str):
    rows = pa.record_batch({"key": KEYS[key]}).slice(5)
    chosen = ChosenRows(rows, np.flatnonzero(NUMBERS[5:] % 3))
    found, expected = checks_of(chosen, [0], ["key"]), check_columns(chosen.copied(), ["key"])
    assert (found is None) == (expected is None)
    assert found is None or found.tolist() == expected.tolist()


def test_costs_prefer_whole_batches_for_functions_that_read_little_of_wide_columns():
    costs = FunctionCosts(lambda: 0.0)
    assert not costs.prefers_all("length", 100, 200), "nothing is measured yet"
    costs.note_copied("length", 100, copying=1.0, evaluating=0.02)
    costs.note_copied("parse", 100, copying=1.0, evaluating=5.0)
    assert costs.prefers_all("length", 100, 200)
    assert not costs.prefers_all("length", 1, 200), "few rows are copied"
    assert not costs.prefers_all("parse", 100, 200)
    for _ in range(20):
        costs.note_all("length", 200, evaluating=4.0)
    assert not costs.prefers_all("length", 100, 200), "it has become slow"


def test_costs_are_measured_again_on_copies():
    costs = FunctionCosts(lambda: 0.0)
    costs.note_copied("length", 100, copying=1.0, evaluating=0.02)
    preferred = [costs.prefers_all("length", 100, 200) for _ in range(200)]
    assert preferred.count(False) == 3


def test_piece_of_a_whole_block_is_not_chosen():
    rows = batch_of(KEYS["integers"])
    block = Block(rows, hash_columns(rows, ["key"]))
    assert block.chosen(0, rows.num_rows)[0] is rows
