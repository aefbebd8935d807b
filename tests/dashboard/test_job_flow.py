"""Loads of operators, bottlenecks, key skew, and their drawing."""

from __future__ import annotations

import math
import re
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_elastic.control.job_flow import InstanceLoad, JobFlow, OperatorFlow, job_flow
from dask_elastic.dashboard.key_skew import key_skew
from dask_elastic.dashboard.operator_graph import BUSY, IDLE, WAITING, colored, drawing
from dask_elastic.vocab.identity import ExecutorId
from dask_elastic.vocab.snapshot import ExecutorSnapshot

STRUCTURE = [
    ("rows", ("rows", "valid"), ("source", "filter")),
    ("fast", ("fast",), ("compute",)),
    ("slow", ("slow",), ("compute",)),
    ("out", ("out",), ("sink",)),
]
RATES = {
    ("rows", "valid"): 100.0, ("valid", "fast"): 80.0, ("valid", "slow"): 80.0, ("slow", "out"): 9.0,
    ("fast", "out"): 70.0,
}  # fmt: skip


def flow_of(*loads: InstanceLoad, letters: dict[str, int] | None = None) -> JobFlow:
    return job_flow(STRUCTURE, RATES, loads, letters or {})


def operator(flow: JobFlow, name: str) -> OperatorFlow:
    [found] = [one for one in flow.operators if one.name == name]
    return found


# loads


def test_load_of_operator_is_mean_over_its_cores():
    flow = flow_of(InstanceLoad("slow", 3, 3.0, 0.0), InstanceLoad("slow", 1, 0.0, 0.4))
    slow = operator(flow, "slow")
    assert (slow.busy, slow.backpressured) == (0.75, pytest.approx(0.1))


def test_core_that_processes_while_others_wait_counts_as_busy():
    slow = operator(flow_of(InstanceLoad("slow", 2, 1.5, 1.0)), "slow")
    assert (slow.busy, slow.backpressured) == (0.75, 0.25)


def test_fused_operator_has_load_of_its_component_and_dead_letters_of_its_own():
    flow = flow_of(
        InstanceLoad("rows", 1, 0.25, 0.5, lag=2.0), InstanceLoad("rows", 1, 0.25, 0.5, lag=3.0), letters={"valid": 7}
    )
    source, valid = operator(flow, "rows"), operator(flow, "valid")
    assert (source.lag, source.dead_letters, source.fused) == (3.0, 0, False)
    assert (valid.lag, valid.dead_letters, valid.fused) == (None, 7, True)
    assert (valid.busy, valid.backpressured) == (source.busy, source.backpressured) == (0.25, 0.5)
    assert flow.lag == 3.0
    assert flow.dead_letters == {"valid": 7}


def test_union_that_runs_in_two_sources_has_the_worse_load():
    structure = [("a", ("a", "both"), ("source", "map")), ("b", ("b", "both"), ("source", "map"))]
    loads = [InstanceLoad("a", 1, 0.1, 0.2), InstanceLoad("b", 1, 0.1, 0.8)]
    for given_loads in (loads, loads[::-1]):
        both = operator(job_flow(structure, {}, given_loads, {}), "both")
        assert (both.component, both.backpressured) == ("b", 0.8)


def test_bottleneck_is_the_busiest_consumer_of_what_waits():
    flow = flow_of(
        InstanceLoad("rows", 1, 0.1, 0.9), InstanceLoad("fast", 1, 0.2, 0.0), InstanceLoad("slow", 1, 0.99, 0.01)
    )
    assert flow.bottlenecks() == {"slow": ["rows"]}


def test_bottleneck_behind_an_operator_that_waits_is_the_only_one():
    flow = flow_of(
        InstanceLoad("rows", 1, 0.1, 0.9), InstanceLoad("fast", 1, 0.02, 0.0), InstanceLoad("slow", 1, 0.1, 0.9),
        InstanceLoad("out", 1, 1.0, 0.0),
    )  # fmt: skip
    assert flow.bottlenecks() == {"out": ["slow"]}


def test_operator_that_waits_a_little_has_no_bottleneck():
    flow = flow_of(InstanceLoad("rows", 1, 0.1, 0.4), InstanceLoad("slow", 1, 1.0, 0.0))
    assert flow.bottlenecks() == {}


def test_job_that_has_ended_has_no_loads_but_its_dead_letters():
    flow = flow_of(InstanceLoad("slow", 1, 1.0, 0.0), letters={"slow": 2}).at_rest()
    assert operator(flow, "slow").busy is None
    assert all(map(math.isnan, flow.rates.values()))
    assert flow.dead_letters == {"slow": 2}
    assert flow.bottlenecks() == {}


# key skew


def executor(index: int, *loads: float) -> ExecutorSnapshot:
    return ExecutorSnapshot(ExecutorId("a", index), 0, {0: 1}, 1.0, None, shard_load=np.array(loads))


def test_key_skew_compares_shards_of_all_executors():
    skew = key_skew([executor(0, 0.1, 0.1), executor(1, 0.0, 0.6)])
    assert (str(skew.executor), skew.shard) == ("a[1]", 1)
    assert (skew.load, skew.share, skew.ratio) == (0.6, pytest.approx(0.75), pytest.approx(3.0))


def test_key_skew_of_idle_or_unmeasured_operator_is_unknown():
    assert key_skew([executor(0, 0.0, 0.001)]) is None
    assert key_skew([ExecutorSnapshot(ExecutorId("a", 0), 0, {0: 1}, 1.0, None)]) is None


# drawing


def svg(flow: JobFlow) -> ElementTree.Element:
    return ElementTree.fromstring(drawing(flow))


def texts(flow: JobFlow, look: str) -> list[str]:
    return [one.text for one in svg(flow).iter("text") if one.get("class") == look]


def test_drawing_names_every_operator_and_every_rate():
    flow = flow_of(
        InstanceLoad("rows", 1, 0.02, 0.97, lag=1.25), InstanceLoad("slow", 1, 0.99, 0.0), letters={"valid": 1234}
    )
    assert texts(flow, "name") == ["rows", "valid", "fast", "slow", "out"]
    assert sorted(texts(flow, "rate")) == ["100/s", "70/s", "80/s", "80/s", "9/s"]
    assert texts(flow, "kind")[0] == "source, lag 1.25 s"
    assert texts(flow, "badge") == ["1,234 dead"]
    assert texts(flow, "state") == ["backpressured 97%", "not measured", "bottleneck", "not measured"]


@pytest.mark.parametrize(
    ("busy", "backpressured", "color"), [(0.02, 0.05, IDLE), (0.6, 0.3, BUSY), (0.2, 0.7, WAITING), (0.0, 1.0, WAITING)]
)
def test_color_of_operator_is_that_of_its_larger_share(busy, backpressured, color):
    assert colored(OperatorFlow("a", "compute", "a", busy, backpressured))[0] == color


def test_names_in_drawing_are_escaped():
    flow = job_flow([("<b>&", ("<b>&",), ("source",))], {}, [], {})
    assert texts(flow, "name") == ["<b>&"]
    assert "<b>" not in drawing(flow)


def test_rates_of_ended_job_are_not_drawn():
    assert texts(flow_of().at_rest(), "rate") == []


@given(st.integers(3, 30), st.randoms(use_true_random=False))
def test_boxes_of_any_graph_do_not_overlap_and_lie_within_the_drawing(count, random):
    names = [f"operator_{number}" for number in range(count)]
    kinds = ["source", *(random.choice(["map", "compute", "sink"]) for _ in names[1:])]
    rates = {(random.choice(names[max(0, at - 4) : at]), names[at]): 10.0**at for at in range(1, count)}
    operators = tuple(
        OperatorFlow(name, kind, names[0] if kind == "map" else name, 0.5, 0.2)
        for name, kind in zip(names, kinds, strict=True)
    )
    drawn = svg(JobFlow(operators, rates))
    left, top, width, height = map(float, drawn.get("viewBox").split())
    boxes = []
    for one in drawn.iter("rect"):
        if one.get("stroke") is not None:
            x, y, across, down = (float(one.get(name)) for name in ("x", "y", "width", "height"))
            assert left <= x
            assert x + across <= left + width + 1
            assert top <= y
            assert y + down <= top + height + 1
            assert not any(
                x < x2 + w2 and x2 < x + across and y < y2 + h2 and y2 < y + down for x2, y2, w2, h2 in boxes
            )
            boxes.append((x, y, across, down))
    assert len(boxes) == count
    # Rows flow to the right.
    begins = [
        re.match(r"M([\d.-]+),", path.get("d")).group(1) for path in drawn.iter("path") if path.get("stroke-width")
    ]
    ends = [
        re.match(r"M([\d.-]+),", path.get("d")).group(1) for path in drawn.iter("path") if path.get("class") == "head"
    ]
    assert all(float(end) > float(begin) for begin, end in zip(begins, ends, strict=True))
