"""Under moves, a job's state equals that of one process over the same rows, and each key's rows stay in order."""

from __future__ import annotations

import contextlib
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from distributed import Client

import dask_elastic as de
from dask_elastic.executor.events import MoveShard, SetCores
from dask_elastic.vocab.errors import MoveRefused

RUN = {"timeout": 100, "progress": False}
SEQUENCE = {"last": pa.int64(), "faults": pa.int64()}


def in_sequence():
    """Logic that counts rows that are not the next of their key, by the column seq which counts each key's rows."""

    def follow(batch, state):
        order = np.argsort(state.ordinals, kind="stable")
        keys, seq = state.ordinals[order], batch["seq"].to_numpy()[order]
        first = np.flatnonzero(np.diff(keys, prepend=-1))
        before = np.concatenate([[-1], seq[:-1]])
        before[first] = state.get("last", default=-1)[keys[first]]
        wrong = np.bincount(keys, weights=seq != before + 1, minlength=len(state)).astype(np.int64)
        last = seq[np.append(first[1:], len(seq)) - 1]
        state.set("last", last)
        state.set("faults", state.get("faults", default=0) + wrong)

    return follow


def totals(service=0.0):
    """Aggregates of retail orders, which take some seconds of service per row."""

    def slowly(batch):
        time.sleep(service * batch.num_rows)
        return batch["quantity"]

    return {
        "n": de.aggregate.Count(),
        "sum": de.aggregate.Sum(slowly, columns=["quantity"]),
        "low": de.aggregate.Min("unit_price"),
        "high": de.aggregate.Max("unit_price"),
        "newest": de.aggregate.Max("seq"),
    }


def by_pandas(table, key):
    """What one process makes of the same rows."""
    frame = table.to_pandas().astype({key: "object"})
    grouped = frame.groupby(key)
    made = grouped.agg(
        n=("quantity", "size"),
        sum=("quantity", "sum"),
        low=("unit_price", "min"),
        high=("unit_price", "max"),
        newest=("seq", "max"),
    )
    return made.sort_index()


def assert_same(job, operator, key, wanted):
    """The state of an operator is what pandas made."""
    state = job.state(operator).to_pandas().astype({key: "object"}).set_index(key).sort_index()
    assert state.index.tolist() == wanted.index.tolist()
    for column in wanted:
        assert state[column].tolist() == wanted[column].tolist(), column


@pytest.fixture(scope="session")
def orders(data_path):
    """Retail orders, each with its place in the sequence of its stock code."""
    table = pq.read_table(data_path("retail_orders/orders.parquet")).slice(0, 60_000)
    frame = table.select(["stock_id", "quantity", "unit_price"]).to_pandas()
    frame["seq"] = frame.groupby("stock_id", observed=True).cumcount().astype(np.int64)
    return pa.Table.from_pandas(frame, preserve_index=False).replace_schema_metadata(None).combine_chunks()


class Mover:
    """Moves shards and cores of a job at random, but always the same."""

    def __init__(self, job, nodes, seed=7):
        self.job = job
        self.nodes = nodes
        self.random = np.random.default_rng(seed)
        self.remote_seen = 0

    def move(self, operator, times):
        """Move some shards of an operator to other tasks, where they are free to."""
        tasks = self.job.assignment()
        tasks = tasks[tasks["operator"] == operator]
        self.remote_seen += int(tasks["remote"].sum())
        for _ in range(times):
            executor = self.random.choice(tasks["executor"].unique())
            mine = tasks[tasks["executor"] == executor]
            try:
                self.job.move_shard(
                    operator, int(self.random.integers(16)), int(self.random.choice(mine["task"])), int(executor)
                )
            except MoveRefused:
                continue  # it moves already, or its target is being drained

    def change_cores(self, operator):
        """Give each executor another share of the cluster."""
        while not (cores := self.random.integers(0, 3, len(self.nodes))).any():
            continue
        self.job.set_cores(operator, dict(zip(self.nodes, cores.tolist(), strict=True)))


def moved_often(metrics):
    """Whether many shards have moved, and some of each operator between workers."""
    across = metrics["moves_across"]
    return metrics["moves"].sum() >= 20 and across.sum() >= 5 and (across > 0).all()


def test_moves_and_core_changes_keep_state_order_and_outputs_exact(client, orders, wait_until):
    def without_dictionaries(batch):
        return batch.set_column(0, "stock_id", batch["stock_id"].cast(pa.string()))

    topology = de.Topology("moved")
    rows = topology.source("orders", de.sources.Push(orders.schema))
    keyed = rows.key_by("stock_id")
    summed = keyed.compute(totals(service=20e-6), name="totals", executors=2, shards=16)
    plain = summed.map(without_dictionaries, name="plain")
    plain.sink(de.sinks.Collect(), name="out")
    rows.key_by("stock_id").compute(in_sequence(), name="order", state=SEQUENCE, executors=1, shards=16)
    job = de.submit(topology, client, flush_interval="50ms", channel_window="256KiB")
    nodes = sorted(client.nthreads())
    for operator in ("totals", "order"):
        job.set_cores(operator, dict.fromkeys(nodes, 1))
    mover = Mover(job, nodes)

    def enough():
        mover.move("totals", 4)
        mover.move("order", 2)
        return moved_often(job.metrics())

    for number, start in enumerate(range(0, len(orders), 1_500)):
        if number == 35:
            wait_until(enough, "shards have moved within and between workers")
        job.send(orders.slice(start, 1_500))
        mover.move("totals", 4)
        mover.move("order", 2)
        if number % 8 == 7:
            mover.change_cores("totals" if number % 16 == 7 else "order")
    job.end_of_input()
    job.wait(**RUN)

    metrics = job.metrics()
    assert moved_often(metrics)
    assert mover.remote_seen >= 1
    assert metrics["rows"].sum() == 2 * len(orders)
    assert metrics["queue"].sum() == 0

    wanted = by_pandas(orders, "stock_id")
    assert_same(job, "totals", "stock_id", wanted)
    order = job.state("order").to_pandas().astype({"stock_id": "object"}).set_index("stock_id").sort_index()
    assert order["faults"].sum() == 0
    assert order["last"].tolist() == wanted["newest"].tolist()
    out = job.collect("out").to_pandas().astype({"stock_id": "object"})
    assert (out.groupby("stock_id")["n"].diff().dropna() > 0).all()
    assert out.groupby("stock_id")["n"].last().tolist() == wanted["n"].tolist()


def test_flights_at_a_rate_are_counted_exactly_while_their_executors_move(client, data_path, tmp_path, wait_until):
    columns = ["tailnum", "carrier", "dep_delay"]
    table = pq.read_table(data_path("flights_nyc2013/flights.parquet"), columns=columns).slice(0, 30_000)
    gate = tmp_path / "gate"

    def parts(instance, instances):
        # The last flights wait until enough shards have moved.
        for start in range(instance * 500, len(table), instances * 500):
            while start >= 25_000 and not gate.exists():
                time.sleep(0.01)
            yield table.slice(start, 500)

    topology = de.Topology("flights")
    source = de.sources.Iterable(parts, rate=20_000, parallel=2)
    flights = topology.source("flights", source)
    logic = {"n": de.aggregate.Count(), "delay": de.aggregate.Sum("dep_delay"), "worst": de.aggregate.Max("dep_delay")}
    flights.key_by("tailnum").compute(logic, name="per_plane", executors=1, shards=16)
    job = de.submit(topology, client, balance_interval="50ms", balance_threshold=1.05)
    nodes = sorted(client.nthreads())
    mover = Mover(job, nodes, seed=3)
    job.set_cores("per_plane", dict.fromkeys(nodes, 1))

    def ended():
        mover.move("per_plane", 5)
        mover.change_cores("per_plane")
        if moved_often(job.metrics()):
            gate.touch()
        return job.status != "running"

    wait_until(ended, "enough shards have moved, and the job ends")
    job.wait(**RUN)
    assert moved_often(job.metrics())
    assert mover.remote_seen >= 1
    frame = table.to_pandas().astype({"tailnum": "object"})
    wanted = frame.groupby("tailnum", dropna=False)["dep_delay"].agg(["size", "sum", "max", "count"])
    state = job.state("per_plane").to_pandas().astype({"tailnum": "object"}).set_index("tailnum")
    state = state.reindex(wanted.index)
    assert len(job.state("per_plane").to_arrow()) == len(wanted)
    assert state["n"].tolist() == wanted["size"].tolist()
    known = wanted["count"] > 0
    assert state["delay"][known].tolist() == wanted["sum"][known].tolist()
    assert state["worst"][known].tolist() == wanted["max"][known].tolist()
    assert state["delay"][~known].isna().all()


def test_a_million_rows_are_counted_exactly_by_two_executors_with_remote_tasks(client):
    table = pa.table({"k": np.random.default_rng(1).zipf(1.3, 1_000_000) % 5_000, "v": np.arange(1_000_000)})
    topology = de.Topology("million")
    rows = topology.source("rows", de.sources.Arrow(table, batch_rows=20_000, parallel=3))
    logic = {"n": de.aggregate.Count(), "sum": de.aggregate.Sum("v")}
    rows.key_by("k").compute(logic, name="counted", executors=2)
    job = de.submit(topology, client, flush_interval="100ms")
    job.set_cores("counted", dict.fromkeys(sorted(client.nthreads()), 1))
    job.wait(**RUN)
    wanted = table.to_pandas().groupby("k")["v"].agg(["count", "sum"])
    state = job.state("counted").to_pandas().set_index("k").sort_index()
    assert state["n"].tolist() == wanted["count"].tolist()
    assert state["sum"].tolist() == wanted["sum"].tolist()


@pytest.fixture
def hasty_switches():
    """Let threads take turns as often as Python can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def test_constant_moves_with_tiny_switch_interval_lose_no_rows(small_cluster, hasty_switches):
    rows_per_batch, keys = 200, 97
    random = np.random.default_rng(5)
    wanted = np.zeros(keys, dtype=np.int64)

    def next_rows():
        k = random.integers(0, keys, rows_per_batch)
        order = np.argsort(k, kind="stable")
        starts = np.flatnonzero(np.diff(k[order], prepend=-1))
        seq = np.empty(rows_per_batch, dtype=np.int64)
        seq[order] = np.arange(rows_per_batch) - np.repeat(starts, np.diff(starts, append=rows_per_batch))
        rows = pa.table({"k": k, "seq": seq + wanted[k]})
        np.add.at(wanted, k, 1)
        return rows

    topology = de.Topology("stress")
    source = topology.source("rows", de.sources.Push(pa.schema({"k": pa.int64(), "seq": pa.int64()})))
    source.key_by("k").compute(
        {"n": de.aggregate.Count(), "newest": de.aggregate.Max("seq")}, name="counted", executors=1, shards=8
    ).sink(de.sinks.Collect(), name="out")
    source.key_by("k").compute(in_sequence(), name="order", state=SEQUENCE, executors=1, shards=8)
    cluster = small_cluster(n_workers=2, threads_per_worker=2, processes=False)
    with Client(cluster, set_as_default=False) as client:
        job = de.submit(topology, client, flush_interval="10ms", balance_interval="20ms")
        plugins = [worker.plugins["dask-elastic-worker"] for worker in cluster.workers.values()]
        homes = [home for plugin in plugins for home in plugin.runtime.job_parts["stress"].homes.values()]
        assert len(homes) == 2
        with ThreadPoolExecutor(2) as threads:
            movers = [threads.submit(move_constantly, home, seed) for seed, home in enumerate(homes)]
            while not all(mover.done() for mover in movers):
                job.send(next_rows())
                time.sleep(0.01)
            for mover in movers:
                mover.result()
        job.drain(timeout=100)
        metrics = job.metrics()
        assert (metrics["moves"] >= 100).all()
        assert (metrics["moves_across"] >= 20).all()
        state = job.state("counted").to_pandas().sort_values("k")
        assert state["n"].tolist() == wanted.tolist()
        assert state["newest"].tolist() == (wanted - 1).tolist()
        order = job.state("order").to_pandas().sort_values("k")
        assert order["faults"].sum() == 0
        assert order["last"].tolist() == (wanted - 1).tolist()
        out = job.collect("out").to_pandas()
        assert (out.groupby("k")["n"].diff().dropna() > 0).all()
        assert out.groupby("k")["n"].last().tolist() == wanted.tolist()


def move_constantly(home, seed):
    """Move shards and cores of an executor until enough of them have moved, or its job has ended."""
    random = np.random.default_rng(seed)
    executor = home.executor
    turn = 0
    deadline = time.monotonic() + 240
    while executor.moves.finished < 100 or executor.moves.finished_across < 20:
        assert not home.ended
        assert time.monotonic() < deadline, f"{executor.moves.finished} moves in four minutes"
        turn += 1
        if turn % 50 == 1:
            home.handle(SetCores({executor.home: int(random.integers(1, 3)), 1 - executor.home: 1 + turn // 50 % 2}))
        _, tasks = executor.assignment()
        with contextlib.suppress(MoveRefused):
            home.handle(MoveShard(int(random.integers(8)), int(random.choice([*tasks]))))
        time.sleep(0.001)
