from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import pyarrow.compute as pc
from hypothesis import given, settings
from hypothesis import strategies as st

from dask_elastic.topology import Sink, Source, Topology
from dask_elastic.topology import aggregate as agg
from dask_elastic.topology.box_layout import Box, place

SVG = "{http://www.w3.org/2000/svg}"


class Flights(Source):
    rate = 20_000
    event_time = "sched_dep"

    def read(self, context):
        yield from ()


class Nowhere(Sink):
    def open(self, context): ...


def add_route(batch):
    return batch


def example():
    topology = Topology("delays <b>& more</b>")
    flights = topology.source("flights", Flights())
    routed = flights.filter(pc.field("delay") > 15, columns=["delay"], name="late & <later>").map(add_route)
    logic = {"flights": agg.Count(), "delay": agg.Mean("delay")}
    routed.key_by("origin", "dest").compute(logic, name="per_route").sink(Nowhere())
    flights.sink(Nowhere(), name="raw")
    return topology


def texts(svg):
    return [element.text for element in ElementTree.fromstring(svg).iter(f"{SVG}text")]


def test_describe_has_one_line_per_operator():
    lines = example().describe().splitlines()
    assert lines[0] == "Topology 'delays <b>& more</b>': 6 operators"
    assert [line.split("<- ")[-1] for line in lines[2:]] == [
        "flights",
        "late & <later>",
        "add_route",
        "per_route",
        "flights",
    ]
    assert "20,000 rows/s; event time sched_dep" in lines[1]
    assert "delay > 15; reads delay" in lines[2]
    assert "by origin, dest; flights = Count(); delay = Mean('delay')" in lines[4]
    assert str(example()) == example().describe()


def test_svg_shows_operators_and_keys():
    shown = texts(example().to_svg())
    for text in ("flights", "late & <later>", "add_route", "per_route", "sink-1", "raw", "origin, dest"):
        assert text in shown
    assert "delay = Mean('delay')" in shown


def test_svg_is_escaped_and_deterministic():
    svg = example().to_svg()
    assert "<b>" not in svg
    assert svg == example().to_svg()
    assert "<b>" not in example()._repr_html_()
    assert svg in example()._repr_html_()


def test_svg_has_one_arrow_per_edge():
    paths = list(ElementTree.fromstring(example().to_svg()).iter(f"{SVG}path"))
    assert len(paths) == 2 * len(example().edges)


def test_svg_abbreviates_long_and_wide_names():
    topology = Topology("names")
    topology.source("x" * 300, Flights()).sink(Nowhere(), name="日本語のとても長い名前" * 5)
    assert all(len(text) < 40 for text in texts(topology.to_svg()))
    assert "x" * 300 in topology.to_svg()


def test_svg_abbreviates_many_aggregates():
    topology = Topology("many")
    logic = {f"sum_{number}": agg.Sum(f"c{number}") for number in range(20)}
    topology.source("flights", Flights()).key_by("k").compute(logic)
    assert "and 17 more" in texts(topology.to_svg())


def test_invalid_topologies_can_be_drawn():
    ElementTree.fromstring(Topology("empty").to_svg())
    assert Topology("empty").describe() == "Topology 'empty': 0 operators"
    topology = Topology("cycle")
    first = topology.source("flights", Flights()).map(add_route)
    second = first.map(add_route)
    second.feed(first)
    second.feed(second)
    assert topology.to_svg().count("stroke-dasharray") == 2


@given(st.integers(1, 12), st.data())
@settings(deadline=None)
def test_boxes_do_not_overlap_and_edges_point_right(count, data):
    names = [f"n{number}" for number in range(count)]
    sizes = st.floats(20, 200)
    boxes = {name: Box(data.draw(sizes), data.draw(sizes)) for name in names}
    pairs = st.tuples(st.sampled_from(names), st.sampled_from(names))
    edges = data.draw(st.lists(pairs, max_size=20))
    layout = place(boxes, edges, dict.fromkeys(edges, 50.0))
    for number, name in enumerate(names):
        x, y = layout.centres[name]
        width, height = boxes[name].width / 2, boxes[name].height / 2
        assert x >= width - 1e-6
        assert y >= height - 1e-6
        assert x + width <= layout.width + 1e-6
        assert y + height <= layout.height + 1e-6
        for other in names[:number]:
            apart_across = abs(x - layout.centres[other][0]) >= width + boxes[other].width / 2
            apart_down = abs(y - layout.centres[other][1]) >= height + boxes[other].height / 2
            assert apart_across or apart_down
    assert set(layout.routes) == set(edges)
    for edge, points in layout.routes.items():
        if edge not in layout.backward:
            assert [point[0] for point in points] == sorted(point[0] for point in points)
            assert layout.centres[edge[0]][0] < layout.centres[edge[1]][0]
    if all(names.index(source) < names.index(target) for source, target in edges):
        assert not layout.backward


def test_describe_keeps_inner_brackets_of_expressions():
    topology = Topology("brackets")
    source = topology.source("flights", Flights())
    source.filter(pc.field("delay").is_valid(), name="known").sink(Nowhere(), name="out")
    source.filter((pc.field("a") > 1) & (pc.field("b") < 2), name="both").sink(Nowhere(), name="out-2")
    described = topology.describe()
    assert "is_valid(delay)" in described
    assert " (a > 1) and (b < 2) " in described
