from __future__ import annotations

import cloudpickle
import pyarrow as pa
import pytest

from dask_elastic.connectors import sinks
from dask_elastic.topology.sink import SinkContext
from dask_elastic.vocab.errors import SinkError, TopologyError

HERE = SinkContext("job", "results", node=1, instance=2)


def numbers(*values: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"n": pa.array(values, pa.int64())})


def test_collect_keeps_batches_in_order():
    writer = sinks.Collect().open(HERE)
    writer.write(numbers(1, 2))
    writer.write(numbers(3))
    writer.close()
    assert [batch["n"].to_pylist() for batch in writer.collected()] == [[1, 2], [3]]


def test_collect_over_limit_raises_error_that_shows_how_to_raise_it():
    writer = sinks.Collect(limit=100).open(HERE)
    writer.write(numbers(*range(12)))
    with pytest.raises(SinkError) as caught:
        writer.write(numbers(1))
    assert str(caught.value) == (
        "sink 'results' of job 'job', instance 2: 12 rows are kept, and 1 more would make 104 B, over the limit of "
        '100 B. Raise it, as in sinks.Collect(limit="1GiB"), or use sinks.Parquet.'
    )
    assert len(writer.collected()) == 1


def test_collect_counts_shared_dictionary_once():
    words = pa.array([f"a long word {n % 50}" for n in range(1000)]).dictionary_encode()
    whole = pa.RecordBatch.from_arrays([words], ["word"])
    writer = sinks.Collect(limit=whole.nbytes + 500).open(HERE)
    for start in range(0, 1000, 10):
        writer.write(whole.slice(start, 10))
    assert sum(batch.num_rows for batch in writer.collected()) == 1000


def test_collect_drops_rows_when_aborted():
    writer = sinks.Collect().open(HERE)
    writer.write(numbers(1))
    writer.abort()
    assert writer.collected() == []


@pytest.mark.parametrize("limit", ["a lot", 0, -1, None, "0 MiB"])
def test_collect_refuses_invalid_limit(limit):
    with pytest.raises(TopologyError, match=r"sinks\.Collect: limit is"):
        sinks.Collect(limit)


def test_collect_parses_limit_like_dask():
    assert sinks.Collect("1.5 kiB").limit == sinks.Collect(1536).limit == 1536
    assert repr(sinks.Collect()) == "Collect(limit='256.00MiB')"


def test_call_calls_function_with_each_batch():
    seen: list[object] = []
    writer = sinks.Call(seen.append, close=lambda: seen.append("closed")).open(HERE)
    writer.write(numbers(1, 2))
    writer.close()
    writer.close()
    assert seen == [numbers(1, 2), "closed"]


def test_call_does_not_close_after_a_failure():
    seen: list[object] = []
    writer = sinks.Call(seen.append, close=lambda: seen.append("closed")).open(HERE)
    writer.abort()
    writer.close()
    assert seen == []
    sinks.Call(seen.append).open(HERE).close()


def test_call_raises_the_users_exception_unchanged():
    def broken(rows: pa.RecordBatch) -> None:
        raise ZeroDivisionError("user error")

    with pytest.raises(ZeroDivisionError, match="user error"):
        sinks.Call(broken).open(HERE).write(numbers(1))


def test_collecting_from_call_is_refused():
    with pytest.raises(SinkError, match=r"use sinks\.Collect"):
        sinks.Call(print).open(HERE).collected()


def test_call_refuses_what_is_not_callable():
    with pytest.raises(TopologyError, match="takes a function of a batch, not str"):
        sinks.Call("print")
    with pytest.raises(TopologyError, match="close is 'now'"):
        sinks.Call(print, close="now")


def test_sinks_print_and_pickle():
    assert repr(sinks.Call(print)) == "Call(print)"
    assert cloudpickle.loads(cloudpickle.dumps(sinks.Collect("1MiB"))).limit == 2**20
    sink = sinks.Parquet("/data/out", mode="append")
    assert repr(cloudpickle.loads(cloudpickle.dumps(sink))) == "Parquet('/data/out', mode='append')"
