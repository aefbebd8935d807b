"""What users get wrong, and what data gets wrong: said clearly and at once, and no other row suffers."""

from __future__ import annotations

import math
import threading
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from distributed import Client

import dask_elastic as de
from dask_elastic.runtime import submit as submitting
from dask_elastic.vocab import errors

RUN = {"timeout": 30, "progress": False}


def counting(table, name="count", batch_rows=1_000, **compute):
    """A topology that counts rows by the column k."""
    topology = de.Topology(name)
    rows = topology.source("rows", de.sources.Arrow(table, batch_rows=batch_rows))
    rows.key_by("k").compute({"n": de.aggregate.Count()}, name="counted", **compute)
    return topology


def mapped(function, table, batch_rows=100):
    """A topology that maps rows before it counts them by the column k."""
    topology = de.Topology("mapped")
    rows = topology.source("rows", de.sources.Arrow(table, batch_rows=batch_rows))
    rows.map(function, name="tidy").key_by("k").compute({"n": de.aggregate.Count()}, name="counted")
    return topology


@pytest.fixture
def numbers():
    return pa.table({"k": np.arange(1_000) % 10, "v": np.arange(1_000)})


# at submit


def test_a_function_that_cannot_be_pickled_is_refused_and_its_variable_named(client, numbers):
    guard = threading.Lock()

    def locked(batch):
        with guard:
            return batch

    with pytest.raises(errors.SubmitError, match=r"'tidy'.*'guard'.*lock"):
        de.submit(mapped(locked, numbers), client)
    assert de.jobs(client) == []


def test_an_aggregate_that_cannot_be_pickled_is_refused_and_its_variable_named(client, numbers):
    guard = threading.Lock()

    def locked(batch):
        with guard:
            return batch["v"]

    topology = de.Topology("t")
    rows = topology.source("rows", de.sources.Arrow(numbers))
    rows.key_by("k").compute({"sum": de.aggregate.Sum(locked, columns=["v"])}, name="summed")
    with pytest.raises(errors.SubmitError, match=r"'summed'.*'guard'"):
        de.submit(topology, client)


def test_a_module_that_the_workers_lack_is_named(client, numbers):
    class Foreign:
        def __reduce__(self):
            return __import__, ("a_module_that_is_only_on_the_client",)

    foreign = Foreign()

    def uses(batch):
        return batch if foreign else None

    with pytest.raises(Exception, match="a_module_that_is_only_on_the_client"):
        de.submit(mapped(uses, numbers), client)
    assert de.jobs(client) == []


def test_an_unknown_option_gets_the_nearest_name(client, numbers):
    with pytest.raises(errors.SubmitError, match="'inboxtime': did you mean 'inbox_time'"):
        de.submit(counting(numbers), client, inboxtime="2ms")


def test_an_option_of_no_sense_is_refused(client, numbers):
    with pytest.raises(errors.SubmitError, match="on_error='perhaps': choose from 'fail', 'skip'"):
        de.submit(counting(numbers), client, on_error="perhaps")
    with pytest.raises(errors.SubmitError, match="inbox_time='soon' is not a duration"):
        de.submit(counting(numbers), client, inbox_time="soon")


def test_a_job_that_takes_no_rows_says_so(client, numbers):
    job = de.submit(counting(numbers), client)
    with pytest.raises(errors.UnknownOperator, match=r"job 'count' has no sources\.Push: nothing can be sent to it"):
        job.send(numbers)
    job.wait(**RUN)


@pytest.mark.parametrize("name", [3, "", "two\nlines"])
def test_a_name_that_is_none_is_refused(client, numbers, name):
    known = [job.name for job in de.jobs(client)]
    with pytest.raises(errors.SubmitError, match=r"job: the name "):
        de.submit(counting(numbers), client, name=name)
    assert [job.name for job in de.jobs(client)] == known


def test_cores_for_an_unknown_operator_are_refused(client, numbers):
    with pytest.raises(errors.SubmitError, match=r"'conted'.*\['counted'\]"):
        de.submit(counting(numbers), client, cores={"conted": 2})
    with pytest.raises(errors.SubmitError, match="at least one core"):
        de.submit(counting(numbers), client, cores={"counted": 0})


def test_what_is_no_topology_is_refused(client):
    with pytest.raises(TypeError, match="takes a Topology, not str"):
        de.submit("topology", client)


def test_versions_that_differ_are_named(client, numbers, monkeypatch):
    monkeypatch.setattr(submitting, "__version__", "0.0.1+other")
    with pytest.raises(errors.VersionMismatch, match=r"client: 0\.0\.1\+other, scheduler: .*Install one version"):
        de.submit(counting(numbers), client)


def test_without_workers_a_job_is_refused_at_once(small_cluster, numbers):
    with Client(small_cluster(n_workers=0)) as alone, pytest.raises(errors.NoWorkers, match="no workers"):
        de.submit(counting(numbers), alone)


def test_a_missing_column_is_found_at_submit(client, numbers):
    topology = de.Topology("t")
    rows = topology.source("rows", de.sources.Arrow(numbers))
    rows.key_by("kk").compute({"n": de.aggregate.Count()}, name="counted")
    with pytest.raises(errors.ElasticError, match=r"'kk'"):
        de.submit(topology, client)


# names


@pytest.fixture
def held(client):
    """A job that runs until it is stopped."""
    topology = de.Topology("held")
    rows = topology.source("rows", de.sources.Push(pa.schema({"k": pa.int64()})))
    rows.key_by("k").compute({"n": de.aggregate.Count()}, name="counted").sink(de.sinks.Collect(), name="out")
    return de.submit(topology, client, cores={"counted": 1})


def test_a_name_in_use_is_refused_and_another_is_not(client, held, numbers):
    with pytest.raises(errors.SubmitError, match="a job 'held' is running already"):
        de.submit(counting(numbers), client, name="held")
    de.submit(counting(numbers), client, name="other").wait(**RUN)
    assert held.status == "running"


def test_of_two_submits_of_one_name_at_a_time_one_is_refused(client, numbers):
    outcomes = []

    def submit():
        try:
            outcomes.append(de.submit(counting(numbers), client, name="twin"))
        except errors.SubmitError as error:
            outcomes.append(error)

    threads = [threading.Thread(target=submit) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    won = [outcome for outcome in outcomes if isinstance(outcome, de.Job)]
    assert len(outcomes) == 2
    for job in won:
        job.wait(**RUN)
        assert job.state("counted").to_pandas()["n"].sum() == 1_000
    # Where the first had ended before the second came, both may win; what must not be is a job of both.
    assert won
    assert all("running already" in str(outcome) for outcome in outcomes if outcome not in won)


def test_unknown_jobs_and_operators_are_named_with_what_there_is(client, held):
    with pytest.raises(errors.UnknownJob, match=r"no job 'hold'.*\['held'\]"):
        de.job("hold", client)
    with pytest.raises(errors.UnknownOperator, match=r"'cont'.*\['counted'\]"):
        held.state("cont").to_arrow()
    with pytest.raises(errors.UnknownOperator, match=r"'cont'.*\['counted'\]"):
        held.set_cores("cont", 2)
    with pytest.raises(errors.UnknownOperator, match=r"'rows' has the executors 0|no stateful operator 'rows'"):
        held.move_shard("rows", 0, 0)
    with pytest.raises(errors.UnknownOperator, match=r"executors 0 to \d, not 77"):
        held.set_cores("counted", 2, executor=77)
    with pytest.raises(errors.UnknownOperator, match=r"no sink 'in'.*\['out'\]"):
        held.collect("in")
    with pytest.raises(errors.UnknownOperator, match=r"no pushed source 'row'.*\['rows'\]"):
        held.send(pa.table({"k": [1]}), "row")
    with pytest.raises(errors.UnknownOperator, match="no operator 'cont'"):
        held.dead_letters("cont")
    assert held.status == "running"


def test_commands_of_no_sense_are_refused_and_the_job_goes_on(client, held):
    with pytest.raises(errors.PlanningError, match="at least one core"):
        held.set_cores("counted", 0)
    with pytest.raises(errors.PlanningError, match="is no node of job 'held'"):
        held.set_cores("counted", {"tcp://nowhere:1": 1})
    with pytest.raises(errors.PlanningError, match="at least one core"):
        held.set_cores("counted", {held.assignment()["home"][0]: 0})
    with pytest.raises(errors.MoveRefused, match="shard 256 does not exist"):
        held.move_shard("counted", 256, 0)
    with pytest.raises(errors.MoveRefused, match="task 99 cannot take"):
        held.move_shard("counted", 0, 99)
    with pytest.raises(TypeError, match="Table or RecordBatch, not dict"):
        held.send({"k": [1]})
    held.send(pa.table({"k": [1, 1]}))
    held.end_of_input()
    held.wait(**RUN)
    assert held.state("counted").get(1) == {"k": 1, "n": 2}


def test_too_few_cores_are_said_and_shared(client, numbers, held):
    job = de.submit(counting(numbers, executors=9), client)
    job.wait(**RUN)
    assert "oversubscribed" in repr(job)
    assert "oversubscribed" in job._repr_html_()
    assert job.state("counted").to_pandas()["n"].tolist() == [100] * 10
    assert "oversubscribed" not in repr(held)
    held.set_cores("counted", 50)
    assert "oversubscribed" in repr(held)


# user code that raises


def test_a_function_that_raises_fails_the_job_and_is_named(client, numbers):
    def raises(batch):
        if pc.max(batch["v"]).as_py() >= 550:
            raise ValueError("no such plane")
        return batch

    job = de.submit(mapped(raises, numbers), client)
    with pytest.raises(
        errors.JobFailed, match=r"job 'mapped' failed: operator 'tidy', batch \d: ValueError: no such"
    ) as e:
        job.wait(**RUN)
    cause = e.value.__cause__
    assert isinstance(cause, errors.UserCodeError)
    assert cause.operator == "tidy"
    assert cause.cause == "ValueError: no such plane"
    assert "in raises" in cause.trace
    assert job.status == "failed"
    assert isinstance(job.error, errors.UserCodeError)
    assert job.metrics()["rows"].sum() <= 500


def test_an_aggregate_that_raises_fails_the_job_and_is_named(client, numbers):
    def raises(batch):
        if batch.num_rows:
            raise KeyError("fare")
        return batch["v"]

    topology = de.Topology("t")
    rows = topology.source("rows", de.sources.Arrow(numbers, batch_rows=100))
    rows.key_by("k").compute({"sum": de.aggregate.Sum(raises, columns=["v"])}, name="summed")
    job = de.submit(topology, client)
    with pytest.raises(errors.JobFailed) as e:
        job.wait(**RUN)
    assert isinstance(e.value.__cause__, errors.UserCodeError)
    assert e.value.__cause__.operator == "summed"


def test_an_error_that_cannot_be_pickled_reaches_the_client_as_text(client, numbers):
    class Stubborn(Exception):
        def __init__(self):
            super().__init__("stubborn")
            self.guard = threading.Lock()

    def opens():
        raise Stubborn
        yield

    topology = de.Topology("t")
    rows = topology.source("rows", de.sources.Iterable(opens))
    rows.key_by("k").compute({"n": de.aggregate.Count()}, name="counted")
    job = de.submit(topology, client)
    with pytest.raises(errors.JobFailed, match="stubborn"):
        job.wait(**RUN)


def test_a_function_that_exits_its_thread_fails_the_job(client, numbers):
    def leaves(batch):
        raise SystemExit(3)

    job = de.submit(mapped(leaves, numbers), client)
    with pytest.raises(errors.JobFailed):
        job.wait(**RUN)


@pytest.mark.parametrize("stateful", [False, True])
def test_rows_that_raise_are_set_aside_and_all_others_processed(client, numbers, stateful):
    bad = {7, 8, 123, 500, 999}

    def picky(batch):
        for value in batch["v"].to_pylist():
            if value in bad:
                raise ValueError(f"cannot digest {value}")
        return batch["v"] if stateful else batch

    topology = de.Topology("picky")
    rows = topology.source("rows", de.sources.Arrow(numbers, batch_rows=100))
    if stateful:
        rows.key_by("k").compute(
            {"n": de.aggregate.Count(), "sum": de.aggregate.Sum(picky, columns=["v"])}, name="counted"
        )
    else:
        rows = rows.map(picky, name="tidy")
        rows.key_by("k").compute({"n": de.aggregate.Count(), "sum": de.aggregate.Sum("v")}, name="counted")
    job = de.submit(topology, client, on_error="skip")
    job.wait(**RUN)
    operator = "counted" if stateful else "tidy"
    assert job.dead_letters() == {operator: 5}
    letters = job.dead_letters(operator).to_pandas().sort_values("v")
    assert letters["v"].tolist() == sorted(bad)
    assert letters["__error"].tolist() == [f"ValueError: cannot digest {value}" for value in sorted(bad)]
    frame = numbers.to_pandas()
    wanted = frame[~frame["v"].isin(bad)].groupby("k")["v"].agg(["count", "sum"])
    state = job.state("counted").to_pandas().set_index("k").sort_index()
    assert state["n"].tolist() == wanted["count"].tolist()
    assert state["sum"].tolist() == wanted["sum"].tolist()
    assert "5 dead letters" in repr(job)


def test_dead_letters_of_none_and_of_remote_tasks(client, numbers, wait_until):
    def picky(batch):
        if 0 in (batch["v"].to_numpy() % 100):
            raise ValueError("round")
        return batch["v"]

    topology = de.Topology("remote-letters")
    rows = topology.source("rows", de.sources.Push(numbers.schema))
    rows.key_by("k").compute({"sum": de.aggregate.Sum(picky, columns=["v"])}, name="summed", executors=1)
    job = de.submit(topology, client, on_error="skip", cores={"summed": 1})
    assert job.dead_letters() == {}
    assert job.dead_letters("summed").num_rows == 0
    home = job.assignment()["home"][0]
    away = next(address for address in client.nthreads() if address != home)
    job.set_cores("summed", {away: 1})
    wait_until(lambda: job.assignment()["remote"].all(), "the executor is on a remote core only")
    job.send(numbers)
    job.end_of_input()
    job.wait(**RUN)
    assert job.dead_letters() == {"summed": 10}
    assert job.dead_letters("summed")["v"].to_pylist() == sorted(range(0, 1_000, 100))
    assert job.state("summed").get(0)["sum"] == sum(v for v in range(0, 1_000, 10) if v % 100)


# batches


def test_a_batch_of_another_schema_is_refused_and_the_difference_named(client):
    def changes():
        yield {"k": [1, 2], "v": [1, 2]}
        yield {"k": [1, 2], "v": ["1", "2"]}

    topology = de.Topology("t")
    rows = topology.source("rows", de.sources.Iterable(changes))
    rows.key_by("k").compute({"n": de.aggregate.Count("v")}, name="counted")
    job = de.submit(topology, client)
    with pytest.raises(errors.JobFailed, match="column 'v': string instead of int64") as e:
        job.wait(**RUN)
    assert isinstance(e.value.__cause__, errors.SchemaMismatch)


def test_a_map_that_changes_its_schema_is_refused_and_the_difference_named(client, numbers):
    def fickle(batch):
        return [batch, batch.set_column(0, "k", batch["k"].cast(pa.int32()))]

    job = de.submit(mapped(fickle, numbers), client)
    with pytest.raises(errors.JobFailed, match="column 'k': int32 instead of int64") as e:
        job.wait(**RUN)
    assert isinstance(e.value.__cause__, errors.SchemaMismatch)


def test_rows_sent_with_another_schema_fail_the_job_and_name_the_difference(client, held):
    held.send(pa.table({"k": ["one"]}))
    with pytest.raises(errors.JobFailed, match="column 'k': string instead of int64") as e:
        held.wait(**RUN)
    assert isinstance(e.value.__cause__, errors.SchemaMismatch)
    with pytest.raises(errors.SchemaMismatch):
        held.send(pa.table({"k": [1]}))


def test_null_nan_and_negative_zero_are_keys(client):
    values = [None, math.nan, -0.0, 0.0, 1.5, math.nan, None, 0.0]
    other_nan = np.array([0x7FF8000000000001], dtype=np.uint64).view(np.float64)[0]
    table = pa.table({"k": pa.array([*values, other_nan, *[1.5] * 92], pa.float64(), from_pandas=False)})
    job = de.submit(counting(table, batch_rows=3), client)
    job.wait(**RUN)
    state = job.state("counted")
    assert len(state.to_arrow()) == 4
    assert state.get(None)["n"] == 2
    assert state.get(math.nan)["n"] == 3
    assert state.get(-0.0)["n"] == 3
    assert state.get(0.0)["n"] == 3
    assert state.get(1.5)["n"] == 93
    assert state.get(2.5) is None


def test_empty_batches_and_empty_sources_are_no_trouble(client):
    schema = pa.schema({"k": pa.int64()})
    empty = pa.RecordBatch.from_pylist([], schema)

    def gaps():
        yield empty
        yield {"k": [1]}
        yield empty
        yield {"k": [1]}

    topology = de.Topology("gaps")
    rows = topology.source("rows", de.sources.Iterable(gaps, schema=schema))
    nothing = topology.source("nothing", de.sources.Arrow(pa.Table.from_batches([], schema)))
    none_left = rows.filter(pc.field("k") > 5)
    none_left.key_by("k").compute({"n": de.aggregate.Count()}, name="none").sink(de.sinks.Collect(), name="out")
    rows.union(nothing).key_by("k").compute({"n": de.aggregate.Count()}, name="counted")
    job = de.submit(topology, client)
    job.wait(**RUN)
    assert job.state("counted").get(1)["n"] == 2
    assert job.state("none").to_arrow().num_rows == 0
    assert job.state("none").get(1) is None
    assert job.collect("out").num_rows == 0


def test_a_batch_of_a_million_rows_is_sliced(client):
    rows = 1_000_000
    batch = pa.record_batch({"k": np.arange(rows) % 1_000, "v": np.arange(rows)})

    def one():
        yield batch

    seen_most = de.aggregate.Max(lambda b: pa.array(np.full(b.num_rows, b.num_rows)), columns=["v"])
    topology = de.Topology("million")
    source = topology.source("rows", de.sources.Iterable(one, batch_rows=rows))
    source.key_by("k").compute({"n": de.aggregate.Count(), "most": seen_most}, name="counted")
    job = de.submit(topology, client)
    job.wait(**RUN)
    state = job.state("counted").to_pandas()
    assert state["n"].tolist() == [1_000] * 1_000
    assert state["most"].max() <= 65_536


# sources and sinks that raise


def test_a_source_that_raises_fails_the_job_and_is_named(client):
    def breaks():
        yield {"k": [1]}
        raise ConnectionError("the feed is down")

    topology = de.Topology("t")
    rows = topology.source("feed", de.sources.Iterable(breaks))
    rows.key_by("k").compute({"n": de.aggregate.Count()}, name="counted")
    job = de.submit(topology, client)
    with pytest.raises(errors.JobFailed, match=r"source 'feed'.*ConnectionError: the feed is down") as e:
        job.wait(**RUN)
    assert isinstance(e.value.__cause__, errors.SourceError)


def test_a_sink_that_raises_fails_the_job_and_is_named(client, numbers):
    def full(batch):
        raise OSError("no space left")

    topology = de.Topology("t")
    rows = topology.source("rows", de.sources.Arrow(numbers))
    rows.key_by("k").compute({"n": de.aggregate.Count()}, name="counted").sink(de.sinks.Call(full), name="out")
    job = de.submit(topology, client)
    with pytest.raises(errors.JobFailed, match=r"sink 'out'.*OSError: no space left") as e:
        job.wait(**RUN)
    assert isinstance(e.value.__cause__, errors.SinkError)


def test_a_sink_that_cannot_be_opened_fails_the_job(client, numbers, tmp_path):
    (tmp_path / "old.parquet").write_bytes(b"")
    topology = de.Topology("t")
    topology.source("rows", de.sources.Arrow(numbers)).sink(de.sinks.Parquet(tmp_path), name="out")
    job = de.submit(topology, client)
    with pytest.raises(errors.JobFailed, match=r"old\.parquet"):
        job.wait(**RUN)


def test_a_sum_that_overflows_fails_the_job(client):
    table = pa.table({"k": [1, 1], "v": [2**62, 2**62]})
    topology = de.Topology("t")
    rows = topology.source("rows", de.sources.Arrow(table))
    rows.key_by("k").compute({"sum": de.aggregate.Sum("v")}, name="summed")
    with pytest.raises(errors.JobFailed) as e:
        de.submit(topology, client).wait(**RUN)
    assert isinstance(e.value.__cause__, errors.NumericOverflow)


def test_keys_of_a_wrong_type_are_refused_and_the_job_goes_on(client, held):
    held.send(pa.table({"k": [1]}))
    held.end_of_input()
    held.wait(**RUN)
    state = held.state("counted")
    with pytest.raises(errors.StateError, match="key column 'k' of 'counted' is int64, which 'one' is not"):
        state.get("one")
    with pytest.raises(errors.StateError, match="one value for each"):
        state.get((1, 2))
    assert state.get(Decimal(1))["n"] == 1
