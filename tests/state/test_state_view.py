from __future__ import annotations

import datetime as dt
from decimal import Decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from dask_elastic.state import KeyedStore, StateLayout, StateView
from dask_elastic.vocab.errors import StateError

pytestmark = pytest.mark.usefixtures("storage")

DECLARED = {
    "last": pa.float64(),
    "seen": pa.int64(),
    "blob": object,
    "name": pa.string(),
    "when": pa.timestamp("us", "UTC"),
    "day": pa.date32(),
    "flag": pa.bool_(),
}
KEYS = ["a", "b", "a", "c"]


class Bench:
    def __init__(self) -> None:
        self.store = KeyedStore(1, lambda hashes: np.zeros(len(hashes), np.intp))
        self.store.declare(pa.schema({"key": pa.string()}), StateLayout(DECLARED).fields)
        self.store.grant(0, 0)
        self.session = self.store.session(0)

    def view(self, keys: list[str] = KEYS) -> StateView:
        rows = pa.record_batch({"key": keys, "n": list(range(len(keys)))})
        hashes = np.array([ord(key) for key in keys], dtype=np.uint64)
        return StateView(self.session, self.session.locate(rows, ["key"], hashes), rows, ["key"], DECLARED)

    def results(self) -> dict[str, dict[str, object]]:
        keys, fields = self.store.rows()
        arrays = list(StateLayout(DECLARED).results(fields).values())
        assert [a.type for a, kind in zip(arrays, DECLARED.values(), strict=True) if kind is not object] == [
            kind for kind in DECLARED.values() if kind is not object
        ]
        columns = dict(zip(DECLARED, (array.to_pylist() for array in arrays), strict=True))
        return {
            key: {name: column[place] for name, column in columns.items()}
            for place, key in enumerate(keys["key"].to_pylist())
        }


@pytest.fixture
def bench() -> Bench:
    return Bench()


def by_key(view: StateView, values: np.ndarray) -> dict[str, object]:
    return dict(zip(view.keys["key"].to_pylist(), values.tolist(), strict=True))


@pytest.mark.parametrize("others", [0, 3, 100])
@pytest.mark.parametrize("rows", [4, 100, 5_000])
def test_first_and_last_are_rows_of_their_key_in_the_order_of_the_batch(bench: Bench, rows: int, others: int) -> None:
    """Of batches of all sizes, in memory and on disk, and whether the store has more keys than the batch has rows."""
    bench.view([chr(300 + number) for number in range(others)]).commit()
    keys = [chr(ord("a") + number * number % 7) for number in range(rows)]
    view = bench.view(keys)
    present = view.keys["key"].to_pylist()
    assert view.first.tolist() == [keys.index(key) for key in present]
    assert view.last.tolist() == [rows - 1 - keys[::-1].index(key) for key in present]


def test_first_and_last_of_keys_that_do_not_repeat_are_their_rows(bench: Bench) -> None:
    view = bench.view(["c", "a", "b"])
    assert [["c", "a", "b"][row] for row in view.first] == view.keys["key"].to_pylist()
    assert view.last.tolist() == view.first.tolist()


def test_state_view_values_are_separate_per_key(bench: Bench) -> None:
    view = bench.view()
    assert sorted(view.keys["key"].to_pylist()) == ["a", "b", "c"]
    assert [view.keys["key"].to_pylist()[ordinal] for ordinal in view.ordinals] == KEYS
    assert len(view) == 3
    assert view.get("seen").tolist() == [0, 0, 0]
    assert not view.known("seen").any()
    view.set("seen", view.get("seen") + np.bincount(view.ordinals))
    assert by_key(view, view.get("seen")) == {"a": 2, "b": 1, "c": 1}
    assert len(bench.store) == 0
    view.commit()
    later = bench.view(["d", "a"])
    assert by_key(later, later.get("seen", default=-1)) == {"d": -1, "a": 2}
    assert by_key(later, later.known("seen")) == {"d": False, "a": True}
    later.commit()
    assert bench.results()["a"]["seen"] == 2
    assert bench.results()["a"]["last"] is None
    assert "d" not in bench.results()


def test_state_view_returns_values_in_declared_types(bench: Bench) -> None:
    view = bench.view(["a"])
    when = dt.datetime(2024, 1, 2, tzinfo=dt.UTC)
    view.set("name", ["x"])
    view.set("when", [when])
    view.set("day", np.array(["2024-01-02"], "M8[D]"))
    view.set("flag", pa.array([True]))
    view.set("last", pd.Series([1.5]))
    view.set("seen", pa.chunked_array([[3]]))
    view.set("blob", [[1, 2]])
    assert view.get("blob").tolist() == [[1, 2]]
    view.commit()
    again = bench.view(["a", "b"])
    assert again.get("when").dtype == "M8[us]"
    assert again.get("name", default="?").tolist() in (["x", "?"], ["?", "x"])
    assert np.isnan(again.get("last", default=np.nan)).sum() == 1
    found = bench.results()["a"]
    assert isinstance(found.pop("blob"), bytes)
    assert found == {"last": 1.5, "seen": 3, "name": "x", "when": when, "day": dt.date(2024, 1, 2), "flag": True}


def test_state_view_set_null_deletes_value_and_where_limits_keys(bench: Bench) -> None:
    view = bench.view(["a", "b"])
    keys = view.keys["key"].to_pylist()
    view.set("name", pa.array([None if key == "a" else "x" for key in keys]))
    view.set("seen", [7, 7], where=np.array([key == "a" for key in keys]))
    view.commit()
    assert by_key(view, view.known("name")) == {"a": False, "b": True}
    results = bench.results()
    assert (results["a"]["name"], results["a"]["seen"]) == (None, 7)
    assert (results["b"]["name"], results["b"]["seen"]) == ("x", None)
    forget = bench.view(["a"])
    forget.set("seen", pa.nulls(1))
    forget.commit()
    assert bench.results()["a"]["seen"] is None


def test_state_view_objects_are_copies(bench: Bench) -> None:
    view = bench.view(["a"])
    view.set("blob", [{"n": 1}])
    view.commit()
    bench.view(["a"]).get("blob")[0]["n"] = 2
    shared: list[int] = []
    defaulted = bench.view(["x", "y"]).get("blob", default=shared)
    defaulted[0].append(1)
    assert defaulted[1] == shared == []
    assert bench.view(["a"]).get("blob")[0] == {"n": 1}


@pytest.mark.parametrize(
    ("name", "values", "words"),
    [
        ("lost", [1, 2], ["'lost'", "'last'", "'seen'"]),
        ("seen", [1], ["'seen'", "1 values", "2 keys"]),
        ("seen", [1.5, 2.5], ["'seen'", "int64"]),
        ("seen", np.array([1.5, 2.5]), ["'seen'", "int64"]),
        ("seen", ["x", "y"], ["'seen'"]),
        ("name", [1, 2], ["'name'", "string"]),
        ("last", pa.array(["x", "y"]), ["'last'", "double"]),
        ("seen", 3, ["'seen'"]),
    ],
)
def test_state_view_set_with_unfit_values_raises_with_name_and_reason(
    bench: Bench, name: str, values: object, words: list[str]
) -> None:
    view = bench.view(["a", "b"])
    with pytest.raises(StateError) as refused:
        view.set(name, values)
    for word in words:
        assert word in str(refused.value)
    view.commit()
    assert len(bench.store) == 0


def test_state_view_misused_get_or_where_raises(bench: Bench) -> None:
    view = bench.view(["a", "b"])
    with pytest.raises(StateError, match="not declared"):
        view.get("lost")
    with pytest.raises(StateError, match="where must be 2 booleans"):
        view.set("seen", [1, 2], where=np.array([1, 0]))
    with pytest.raises(StateError, match="default 'x'"):
        view.get("seen", default="x")


def test_state_view_refuses_access_as_per_row(bench: Bench) -> None:
    view = bench.view()
    with pytest.raises(TypeError, match=r"state\['last'\] is the state of one key.* write @de.per_row or @de.per_key"):
        view["last"]
    with pytest.raises(TypeError, match=r"or use the arrays of state.get\('last'\) and state.set\('last', values\)"):
        view["last"] = 3.0


def test_value_that_is_set_is_a_copy_of_the_given_array(bench: Bench) -> None:
    for kind, change in (("float64", 7.5), ("int64", 7), ("datetime64[us]", np.timedelta64(7, "s"))):
        name = {"float64": "last", "int64": "seen", "datetime64[us]": "when"}[kind]
        view = bench.view()
        given = np.zeros(len(view), kind)
        view.set(name, given)
        before = view.get(name).tolist()
        given += change
        assert view.get(name).tolist() == before
        series = pd.Series(np.zeros(len(view), kind))
        view.set(name, series)
        series += change
        assert view.get(name).tolist() == before


@pytest.mark.parametrize("made", [lambda x: np.array(x, object), lambda x: pd.Series(x, dtype=object), tuple, list])
def test_fraction_is_no_integer_in_any_sequence(bench: Bench, made) -> None:
    with pytest.raises(StateError, match=r"truncated|data loss"):
        bench.view().set("seen", made([1, 2.5, 3]))
    with pytest.raises(StateError, match=r"truncated|data loss"):
        bench.view().set("seen", made([1, Decimal("2.5"), None]))
    view = bench.view()
    view.set("seen", made([1, None, 3.0]))
    assert view.get("seen", 0).tolist() == [1, 0, 3]


@pytest.mark.parametrize("default", [0.5, np.float32(0.5), Decimal("0.5")])
def test_default_with_a_fraction_is_kept(bench: Bench, default) -> None:
    assert bench.view().get("seen", default).tolist() == [0.5, 0.5, 0.5]
