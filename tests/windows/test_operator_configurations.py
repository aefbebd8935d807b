"""The configurations of Enorm's Figure 5: their properties, what can be split and combined, and equal results."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

import dask_elastic as de
from dask_elastic import aggregate as agg
from dask_elastic.testing import run
from dask_elastic.topology.windows.configuration import configuration

LOGIC = {"n": agg.Count(), "total": agg.Sum("value")}


def rows():
    random = np.random.default_rng(7)
    at = pa.array(np.sort(random.integers(0, 600, 400)), pa.timestamp("s"))
    names = pa.array([f"k{key}" for key in random.integers(0, 5, 400).tolist()])
    return pa.table({"key": names, "at": at, "value": random.integers(0, 100, 400)})


def source(topology, name="rows"):
    return topology.source(name, de.sources.Arrow(rows(), event_time="at", batch_rows=30))


def combined(topology):
    return source(topology).key_by("key").window("1min").compute(LOGIC, name="whole")


def split(topology, by="key"):
    parts = source(topology).key_by("key").window("1min").compute(LOGIC, name="parts", partials=True)
    return de.consolidate([parts], by=by, name="merged")


def results(build):
    topology = de.Topology("figure5")
    build(topology).sink(de.sinks.Collect(), name="out")
    found = run(topology, executors=2).outputs["out"].to_pandas()
    return found.sort_values([*found.columns]).reset_index(drop=True), topology


def of(topology, *names):
    return [configuration(topology, name) for name in names]


def test_split_and_combined_components_have_the_results_of_pandas():
    whole, _ = results(combined)
    merged, _ = results(split)
    truth = rows().to_pandas()
    truth["window_start"] = truth["at"].dt.floor("1min")
    grouped = truth.groupby(["key", "window_start"])["value"].agg(["count", "sum"]).reset_index()
    for found in (whole, merged):
        assert found["key"].tolist() == grouped["key"].tolist()
        assert (found["window_start"].to_numpy() == grouped["window_start"].to_numpy()).all()
        assert found["n"].tolist() == grouped["count"].tolist()
        assert found["total"].tolist() == grouped["sum"].tolist()


def test_compute_that_consolidates_itself_is_rigid_and_stateful_and_can_be_split():
    _, topology = results(combined)
    (whole,) = of(topology, "whole")
    assert (whole.kind, whole.figure, whole.strategies) == ("rigid, stateful", 1, ("disruptive", "smooth"))
    assert whole.change.startswith("can be split")


def test_compute_before_a_consolidation_is_flexible_and_the_consolidation_stateless():
    _, topology = results(split)
    parts, merged = of(topology, "parts", "merged")
    assert (parts.kind, parts.figure, parts.strategies) == (
        "flexible, stateful",
        1,
        ("instant", "disruptive", "smooth"),
    )
    assert parts.change == "consolidated by 'merged'"
    assert (merged.kind, merged.figure, merged.strategies) == ("rigid, stateless", 1, ("instant",))
    assert merged.change.startswith("can be combined with 'parts'")


def test_compute_without_windows_is_figure_2_and_its_state_has_to_move():
    def build(topology):
        each = source(topology).key_by("key").compute({"n": agg.Count()}, name="each")
        return each.key_by("n").compute({"times": agg.Count()}, name="next")

    found, topology = results(build)
    assert found["times"].max() == 5, "each row of a key has another number: five keys have the first ones"
    for one in of(topology, "each", "next"):
        assert (one.kind, one.figure, one.strategies, one.change) == ("rigid, stateful", 2, ("disruptive",), "")


def test_consolidation_of_consolidated_results_is_figure_3():
    def build(topology):
        parts = source(topology).key_by("key").window("1min").compute(LOGIC, name="parts", partials=True)
        first = de.consolidate([parts], by="key", name="first", partials=True)
        return de.consolidate([first], name="second")

    found, topology = results(build)
    assert found["n"].sum() == 400
    first, second = of(topology, "first", "second")
    assert (first.figure, second.figure) == (1, 3)
    assert first.kind == second.kind == "rigid, stateless"
    assert "over other keys" in second.change


def test_rows_that_only_pass_are_figure_4():
    def build(topology):
        return source(topology).map(lambda batch: batch.select(["key"]), name="mapped")

    found, topology = results(build)
    assert len(found) == 400
    for one in of(topology, "rows", "mapped"):
        assert (one.kind, one.figure, one.strategies) == ("flexible, stateless", 4, ("instant",))


@pytest.mark.parametrize(
    ("build", "operator", "change"),
    [
        (lambda keyed: keyed.window("1min").compute(LOGIC, name="c", allowed_lateness="1min"), "c", "are corrected"),
        (lambda keyed: keyed.window(de.windows.session("5s")).compute(LOGIC, name="c"), "c", "from key to key"),
        (lambda keyed: keyed.window("1min").compute(de.per_key(lambda k, r, w: None), name="c"), "c", "of a function"),
        (lambda keyed: keyed.window("1min").compute(LOGIC, name="c", partials=True), "c", "are not consolidated"),
    ],
)
def test_what_cannot_be_split_is_named(build, operator, change):
    topology = de.Topology("figure5")
    build(source(topology).key_by("key")).sink(de.sinks.Collect())
    found = configuration(topology, operator)
    assert change in found.change
    assert found.kind == "rigid, stateful"


def test_what_cannot_be_combined_is_named():
    topology = de.Topology("figure5")
    both = [
        source(topology, name).key_by("key").window("1min").compute(LOGIC, name=f"of_{name}", partials=True)
        for name in ("east", "west")
    ]
    de.consolidate(both, by="key", name="merged").sink(de.sinks.Collect())
    de.consolidate(both[:1], by="key", name="east_alone").sink(de.sinks.Collect())
    merged, alone = of(topology, "merged", "east_alone")
    assert "it merges the results of 'of_east' and 'of_west'" in merged.change
    assert "others read the partial results of 'of_east'" in alone.change


def test_drawing_shows_what_each_component_is():
    _, topology = results(split)
    svg = topology.to_svg()
    for text in ("compute: flexible, stateful", "compute: rigid, stateless", "may migrate by: instant, disruptive"):
        assert text in svg
