"""Lists, maps and times to live, compared with a model in plain Python, for batch and key logic, across moves."""

from __future__ import annotations

import datetime as dt
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dask_elastic.state import KeyedStore, List, Map, StateLayout, StateView, Value
from dask_elastic.state.cells import Cells
from dask_elastic.state.expiry.times import ExpiryTimes
from dask_elastic.vocab.errors import StateError, StateValueError

pytestmark = pytest.mark.usefixtures("storage")

TTL = 10.0
DECLARED = {
    "last": Value(pa.int64(), ttl=TTL),
    "all": List(pa.string()),
    "recent": List(pa.int32(), ttl=TTL),
    "counts": Map(pa.string(), pa.int64()),
    "seen": Map(pa.int64(), pa.float64(), ttl=TTL),
    "anything": List(object),
}
KEYS = ["a", "b", "c"]


class Bench:
    """A store whose state can be moved to a new store."""

    def __init__(self, declared: dict[str, Any] | None = None) -> None:
        self.declared = declared or DECLARED
        self.layout = StateLayout(self.declared)
        self.store = self.made()

    def made(self) -> KeyedStore:
        store = KeyedStore(2, lambda hashes: (hashes % 2).astype(np.intp), track_dirty=True)
        store.declare(pa.schema({"key": pa.string()}), self.layout.fields)
        for shard in range(2):
            store.grant(shard, 0)
        self.session = store.session(0)
        return store

    def view(self, keys: list[str], now: float = 0.0) -> StateView:
        rows = pa.record_batch({"key": pa.array(keys, pa.string())})
        hashes = np.array([ord(key) for key in keys], dtype=np.uint64)
        located = self.session.locate(rows, ["key"], hashes)
        return StateView(self.session, located, rows, ["key"], self.layout, now)

    def move(self) -> None:
        """Move the state to another store: a full copy of one shard, a delta, a full copy of the other shard."""
        before, self.store = self.store, self.made()
        self.store.install(before.extract([0]))
        self.store.install(before.extract(dirty_only=True))
        self.store.install(before.extract([1]))

    def seen(self, now: float) -> dict[str, dict[str, Any]]:
        keys, values = self.store.rows()
        left = self.layout.unexpired(values, ExpiryTimes(now))
        columns = {name: array.to_pylist() for name, array in self.layout.results(left).items()}
        return {
            key: {name: column[place] for name, column in columns.items()}
            for place, key in enumerate(keys["key"].to_pylist())
        }


class Model:
    """The same state in Python: per key and name, elements with their expiry times."""

    def __init__(self) -> None:
        self.lists: dict[tuple[str, str], list[tuple[Any, float]]] = {}
        self.maps: dict[tuple[str, str], dict[Any, tuple[Any, float]]] = {}
        self.last: dict[str, tuple[int, float]] = {}

    @staticmethod
    def end(name: str, now: float) -> float:
        return now + TTL if DECLARED[name].ttl else np.inf

    def list(self, key: str, name: str, now: float) -> list[Any]:
        return [element for element, end in self.lists.get((key, name), []) if end > now]

    def map(self, key: str, name: str, now: float) -> dict[Any, Any]:
        return {own: value for own, (value, end) in self.maps.get((key, name), {}).items() if end > now}

    def live(self, key: str, name: str, now: float) -> dict[Any, tuple[Any, float]]:
        """Drop expired entries, so that one that is put again is inserted at the end."""
        entries = self.maps.get((key, name), {})
        self.maps[key, name] = {own: entry for own, entry in entries.items() if entry[1] > now}
        return self.maps[key, name]

    def seen(self, key: str, now: float) -> dict[str, Any]:
        last, end = self.last.get(key, (None, np.inf))
        return {
            "last": last if end > now else None,
            **{name: self.list(key, name, now) for name in ("all", "recent")},
            **{name: [*self.map(key, name, now).items()] for name in ("counts", "seen")},
        }


WORDS = st.sampled_from(["x", "y", "zz", ""])
OPERATIONS = st.one_of(
    st.tuples(st.just("last"), st.lists(st.none() | st.integers(-9, 9), min_size=3, max_size=3)),
    st.tuples(st.just("all"), st.lists(WORDS, min_size=6, max_size=6)),
    st.tuples(st.just("recent"), st.lists(st.integers(-9, 9), min_size=6, max_size=6)),
    st.tuples(st.just("counts"), st.lists(st.tuples(WORDS, st.integers(-9, 9)), min_size=6, max_size=6)),
    st.tuples(st.just("seen"), st.lists(st.tuples(st.integers(0, 2), st.just(0.5)), min_size=6, max_size=6)),
    st.tuples(st.just("remove"), st.lists(WORDS, min_size=6, max_size=6)),
    st.tuples(st.just("newest"), st.integers(0, 3)),
    st.tuples(st.just("clear"), st.sampled_from(["all", "counts", "recent", "seen"])),
)
BATCH = st.tuples(
    st.lists(st.sampled_from(KEYS), min_size=1, max_size=6),
    st.floats(0, 8),
    st.sampled_from(["batch", "key"]),
    st.lists(OPERATIONS, max_size=4),
)


def batchwise(view: StateView, keys: list[str], operation: str, argument: Any) -> None:
    distinct = view.keys["key"].to_pylist()
    rows = len(keys)
    match operation:
        case "last":
            chosen = dict(zip(KEYS, argument, strict=True))
            view.set("last", pa.array([chosen[key] for key in distinct], pa.int64()))
        case "all" | "recent":
            view.list(operation).append(argument[:rows])
        case "counts" | "seen":
            view.map(operation).put([own for own, _ in argument[:rows]], [value for _, value in argument[:rows]])
        case "remove":
            view.map("counts").remove(argument[:rows])
        case "newest":
            view.list("recent").keep_newest(argument)
        case "clear":
            column = view.column(argument)
            column.clear(np.array([key != "b" for key in distinct]))


def keywise(view: StateView, cells: Cells, keys: list[str], operation: str, argument: Any) -> None:
    distinct = view.keys["key"].to_pylist()
    states = {key: cells.key(position) for position, key in enumerate(distinct)}
    match operation:
        case "last":
            for key, value in zip(KEYS, argument, strict=True):
                if key in states:
                    states[key]["last"] = value
        case "newest":
            for state in states.values():
                state["recent"].keep_newest(argument)
        case "clear":
            for key, state in states.items():
                if key != "b":
                    state[argument].clear()
        case _:
            for key, row in zip(keys, argument, strict=False):
                if operation in ("all", "recent"):
                    states[key][operation].append(row)
                elif operation == "remove":
                    states[key]["counts"].pop(row, None)
                else:
                    states[key][operation][row[0]] = row[1]


def modelwise(model: Model, keys: list[str], operation: str, argument: Any, now: float) -> None:
    match operation:
        case "last":
            for key, value in zip(KEYS, argument, strict=True):
                if key in keys:
                    model.last[key] = value, now + TTL
        case "newest":
            for key in keys:
                kept = [entry for entry in model.lists.get((key, "recent"), []) if entry[1] > now]
                model.lists[key, "recent"] = kept[len(kept) - min(argument, len(kept)) :]
        case "clear":
            for key in set(keys) - {"b"}:
                model.lists.pop((key, argument), None)
                model.maps.pop((key, argument), None)
        case _:
            for key, row in zip(keys, argument, strict=False):
                if operation in ("all", "recent"):
                    model.lists.setdefault((key, operation), []).append((row, model.end(operation, now)))
                elif operation == "remove":
                    model.live(key, "counts", now).pop(row, None)
                else:
                    model.live(key, operation, now)[row[0]] = row[1], model.end(operation, now)


@settings(max_examples=72, deadline=None)
@given(st.lists(BATCH, max_size=6), st.integers(0, 2))
def test_state_after_random_operations_and_moves_equals_python_model(batches, moves):
    bench, model, now = Bench(), Model(), 1000.0
    for number, (keys, passed, level, operations) in enumerate(batches):
        now += passed
        view = bench.view(keys, now)
        cells = Cells(view)
        for operation, argument in operations:
            if level == "batch":
                batchwise(view, keys, operation, argument)
            else:
                keywise(view, cells, keys, operation, argument)
            modelwise(model, keys, operation, argument, now)
        cells.commit()
        view.commit()
        check_reads(bench.view(keys, now), model, keys, now)
        if moves and number % moves == 0:
            bench.move()
    for key, found in bench.seen(now).items():
        del found["anything"]
        assert found == model.seen(key, now)


def check_reads(view: StateView, model: Model, keys: list[str], now: float) -> None:
    distinct = view.keys["key"].to_pylist()
    for name in ("all", "recent"):
        assert view.list(name).get().to_pylist() == [model.list(key, name, now) for key in distinct]
    maps = view.map("seen")
    assert maps.entries().to_pylist() == [[*model.map(key, "seen", now).items()] for key in distinct]
    wanted = [place % 3 for place in range(len(keys))]
    expected = [model.map(key, "seen", now).get(own) for key, own in zip(keys, wanted, strict=True)]
    assert maps.contains(wanted).tolist() == [value is not None for value in expected]
    assert maps.get(wanted, default=-1).tolist() == [-1 if value is None else value for value in expected]
    cells = Cells(view)
    for position, key in enumerate(distinct):
        state = cells.key(position)
        assert list(state["recent"]) == model.list(key, "recent", now)
        assert dict(state["counts"]) == model.map(key, "counts", now)
        assert ("recent" in state) == bool(model.list(key, "recent", now))


def test_state_expires_exactly_at_its_expiry_time():
    bench = Bench()
    view = bench.view(["a"], now=100.0)
    view.set("last", [7])
    view.list("recent").append([1])
    view.commit()
    view = bench.view(["a"], now=105.0)
    view.list("recent").append([2])
    view.commit()
    last_moment = bench.view(["a"], now=np.nextafter(110.0, 0))
    assert last_moment.get("last").tolist() == [7]
    assert last_moment.list("recent").get().to_pylist() == [[1, 2]]
    ended = bench.view(["a"], now=110.0)
    assert not ended.known("last").any()
    assert ended.get("last", default=-1).tolist() == [-1]
    assert ended.list("recent").get().to_pylist() == [[2]]


def test_value_set_again_expires_later():
    bench = Bench()
    for now in (100.0, 109.0):
        view = bench.view(["a", "b"], now)
        view.set("last", [7, 8], where=np.array([now == 100.0, True]))
        view.commit()
    view = bench.view(["a", "b"], now=112.0)
    assert dict(zip(view.keys["key"].to_pylist(), view.known("last").tolist(), strict=True)) == {"a": False, "b": True}


def test_maps_of_dates_and_strings_keep_entries_apart_by_key():
    declared = {"by_day": Map(pa.date32(), object), "by_name": Map(pa.string(), pa.timestamp("us", "UTC"))}
    bench = Bench(declared)
    day, moment = dt.date(2013, 1, 1), dt.datetime(2013, 1, 1, tzinfo=dt.UTC)
    view = bench.view(["a", "b", "a"])
    view.map("by_day").put([day] * 3, [[1], [2], [3]])
    view.map("by_name").put(["x", "x", "y"], [moment] * 3)
    view.commit()
    bench.move()
    view = bench.view(["a", "b"])
    assert view.map("by_day").get([day, day]).tolist() == [[3], [2]]
    assert view.map("by_name").contains(["y", "y"]).tolist() == [True, False]
    cells = Cells(view)
    position = view.keys["key"].to_pylist().index("a")
    assert dict(cells.key(position)["by_name"]) == {"x": moment, "y": moment}
    assert dict(cells.key(position)["by_day"]) == {day: [3]}


@pytest.mark.parametrize(
    ("kind", "key", "stored"),
    [(pa.int64(), "12", 12), (pa.date32(), dt.datetime(2026, 3, 1, 12), dt.date(2026, 3, 1)), (pa.string(), b"a", "a")],
)
def test_entry_is_found_by_the_key_with_which_it_was_set(kind, key, stored):
    bench = Bench({"counts": Map(kind, pa.int64())})
    for _ in range(2):
        view = bench.view(["a"])
        cells = Cells(view)
        counts = cells.key(0)["counts"]
        for _ in range(2):
            counts[key] = counts.get(key, 0) + 1
        assert key in counts
        cells.commit()
        view.commit()
    counts = Cells(bench.view(["a"])).key(0)["counts"]
    assert dict(counts) == {stored: 4}
    assert counts.pop(key) == 4
    assert not counts
    assert "n/a" not in counts or kind == pa.string()
    with pytest.raises(KeyError):
        del counts[None]


def test_python_objects_changed_after_set_or_get_leave_state_unchanged():
    bench = Bench({"notes": List(object), "note": object, "index": Map(pa.int64(), object)})
    view = bench.view(["a"])
    cells = Cells(view)
    note = {"seen": [1]}
    state = cells.key(0)
    state["notes"].append(note)
    state["note"] = note
    state["index"][1] = note
    note["seen"].append(2)
    state["notes"][0]["seen"].append(3)
    state["note"]["seen"].append(3)
    state["index"][1]["seen"].append(3)
    cells.commit()
    view.commit()
    bench.move()
    state = Cells(bench.view(["a"])).key(0)
    assert [state["notes"][0], state["note"], state["index"][1]] == [{"seen": [1]}] * 3


def test_changes_without_commit_leave_state_unchanged():
    bench = Bench()
    view = bench.view(["a"])
    view.list("all").append(["x"])
    view.commit()
    view = bench.view(["a"])
    cells = Cells(view)
    cells.key(0)["all"].append("y")
    cells.key(0)["last"] = 3
    view.map("counts").put(["x"], [1])
    assert bench.seen(0.0)["a"]["all"] == ["x"]
    assert bench.view(["a"]).map("counts").lengths.tolist() == [0]


def test_key_state_supports_dict_operations():
    bench = Bench()
    view = bench.view(["a"])
    state = Cells(view).key(0)
    assert state["last"] is None
    assert state.get("last", 5) == 5
    assert "last" not in state
    state["last"] = 3
    assert state["last"] == 3
    assert "last" in state
    del state["last"]
    assert state["last"] is None
    state["all"] = ["p", "q", "r"]
    assert state["all"][1:] == ["q", "r"]
    assert state["all"] == ["p", "q", "r"]
    state["all"].keep_newest(1)
    state["all"].extend("st")
    assert repr(state["all"]) == "['r', 's', 't']"
    state["counts"] = {"k": 1}
    state["counts"]["k"] += 1
    assert state["counts"] == {"k": 2}
    with pytest.raises(StateError, match=r"'lats' is not declared.*'last', 'all'"):
        state["lats"]


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (lambda view: view.list("last"), "declared as Value.*state.get and set"),
        (lambda view: view.get("all"), "declared as List.*state.list"),
        (lambda view: view.map("all"), "declared as List.*state.list"),
        (lambda view: view.list("counts"), "declared as Map.*state.map"),
        (lambda view: view.list("nothing"), "'nothing' is not declared"),
        (lambda view: view.list("all").append(["x"]), "1 values for 2 rows"),
        (lambda view: view.list("all").append([1, 2]), "'all' is declared as string"),
        (
            lambda view: view.set("last", "xy"),
            r"'last' is declared as .*: 'xy' is a single value; give an array or a list",
        ),
        (lambda view: view.set("last", 3), "3 is a single value"),
        (lambda view: view.list("all").append("xy"), "'all' is declared as string: 'xy' is a single value"),
        (lambda view: view.map("counts").put(["x", "y"], 7), "'counts' .*7 is a single value"),
        (lambda view: view.list("all").append(["x", None]), "row 1 is null"),
        (lambda view: view.list("recent").append([1.5, 2.5]), "'recent' is declared as int32"),
        (lambda view: view.list("all").append(["x", "y"], where=[True]), "where must be 2 booleans, one per row"),
        (lambda view: view.list("all").set([["x"]]), "1 lists for 2 keys"),
        (lambda view: view.list("all").set(pa.array([1, 2])), "values of type int64 are not lists"),
        (lambda view: view.list("all").keep_newest(-1), r"keep_newest\(-1\) is negative"),
        (lambda view: Cells(view).key(0)["all"].keep_newest(-1), r"'all': keep_newest\(-1\) is negative"),
        (lambda view: view.map("counts").put(["x"], [1]), "1 keys for 2 rows"),
        (lambda view: view.map("counts").put(["x", "y"], [1]), "1 values for 2 rows"),
        (lambda view: view.map("counts").put(["x", None], [1, 2]), "row 1 is null"),
        (lambda view: view.map("counts").put(["x", "y"], [None, 2]), "row 0 is null"),
        (lambda view: view.map("counts").get([1, 2]), "'counts' is declared as string"),
    ],
)
def test_state_view_misused_raises_with_name_and_reason(use, message):
    with pytest.raises(StateError, match=message):
        use(Bench().view(["a", "b"]))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda state: state["all"].append(None), "'all' was given None"),
        (lambda state: state["all"].extend(["z", 1]), "'all' is declared as string, which 1 does not fit"),
        (lambda state: state.__setitem__("all", ["z", None]), "'all' was given None"),
        (lambda state: state.__setitem__("counts", {"z": 1, "y": "n/a"}), "'counts' is declared as .*which 'n/a' does"),
        (lambda state: state["counts"].update({None: 1}), "'counts' was given None"),
        (lambda state: state.__setitem__("last", "n/a"), "'last' is declared as .*which 'n/a' does not fit"),
    ],
)
def test_values_that_do_not_fit_leave_the_cells_unchanged(change, message):
    state = Cells(Bench().view(["a"])).key(0)
    state["all"], state["counts"], state["last"] = ["x"], {"k": 1}, 5
    with pytest.raises(StateValueError, match=message):
        change(state)
    assert (list(state["all"]), dict(state["counts"]), state["last"]) == (["x"], {"k": 1}, 5)


@pytest.mark.parametrize(
    "use",
    [
        lambda view, times: view.set("last", times),
        lambda view, times: view.list("all").append(times),
        lambda view, times: view.map("counts").put(times, [1, 2]),
        lambda view, times: view.set("pairs", pa.array([[time] for time in times], pa.list_(times.type))),
    ],
    ids=["value", "list", "map", "nested"],
)
def test_times_of_nanoseconds_that_objects_do_not_hold_are_refused(use):
    kind = pa.time64("ns")
    declared = {"last": Value(kind), "all": List(kind), "counts": Map(kind, pa.int64()), "pairs": Value(pa.list_(kind))}
    bench = Bench(declared)
    use(bench.view(["a", "b"]), pa.array([1_000, 2_000], kind))
    with pytest.raises(StateValueError, match=r"is declared as .*time64.ns.*would lose data: 1001"):
        use(bench.view(["a", "b"]), pa.array([1_001, 1_002], kind))


def test_list_column_accepts_arrow_and_python_lists():
    bench = Bench()
    view = bench.view(["a", "b"])
    view.list("all").set(pa.array([["x", "y"], None]))
    assert view.list("all").get().to_pylist() == [["x", "y"], []]
    view.list("all").set([["p"], ["q"]], where=[False, True])
    assert view.list("all").get().to_pylist() == [["x", "y"], ["q"]]
    view.list("all").append(pa.chunked_array([["u", None]]), where=[True, False])
    assert view.list("all").lengths.tolist() == [3, 1]


def test_state_bytes_include_lists():
    bench = Bench({"all": List(pa.int64())})
    view = bench.view(["a"])
    view.list("all").append([1])
    view.commit()
    small = bench.store.state_bytes()
    view = bench.view(["a"] * 10_000)
    view.list("all").append(np.arange(10_000))
    view.commit()
    assert bench.store.state_bytes() == small + 80_000
