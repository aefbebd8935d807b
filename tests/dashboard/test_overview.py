"""The overview of all jobs, conditions, the graph and links to workers, without a server."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from bokeh.models import CustomJS

from dask_elastic.control.job_flow import InstanceLoad, job_flow
from dask_elastic.dashboard.figures.time_figure import LEFT, RIGHT
from dask_elastic.dashboard.page import ElasticPage
from dask_elastic.vocab.plan import Outlook

STRUCTURE = [
    ("rows", ("rows", "valid"), ("source", "filter")),
    ("a", ("a",), ("compute",)),
    ("out", ("out",), ("sink",)),
]


def flow_of(*loads, letters=None):
    rates = {("rows", "valid"): 900.0, ("valid", "a"): 800.0, ("a", "out"): 700.0}
    return job_flow(STRUCTURE, rates, loads, letters or {})


def change(known, name, **values):
    known.cards[name] = replace(known.cards[name], **values)


@pytest.fixture
def three(known):
    """Three running jobs, of which the second misses its target; the third is the newest."""
    for name, latency in [("first", 0.01), ("second", 0.2), ("third", 0.01)]:
        known.add(known.job({"a": [{0: 2}]}, name=name, latency=latency))
    return known


def jobs_in(page):
    return re.findall(r'<td class="job"><a href="elastic\?job=[^"]*">([^<]*)</a>', page.overview.root.text)


def row_of(page, name):
    [row] = [row for row in page.overview.root.text.split("<tr") if f">{name}</a>" in row]
    return [re.sub("<[^>]*>", "", cell.split("</td>")[0].split(">", 1)[1]) for cell in row.split("<td")[1:]]


def labels(page, name):
    [row] = [row for row in page.overview.root.text.split("<tr") if f">{name}</a>" in row]
    return re.findall(r'<span class="badge (\w+)">([^<]*)</span>', row)


# which job


def test_page_opens_on_the_job_in_trouble(three):
    page = ElasticPage(three.view())
    assert jobs_in(page) == ["second", "third", "first"]
    assert page.select.value == "second"
    assert '<tr class="shown"><td class="job"><a href="elastic?job=second">' in page.overview.root.text
    assert "The mean latency was above the target of 50 ms in most of the last 10 seconds." in page.headline.root.text


def test_page_stays_with_its_job_when_another_one_gets_into_trouble(three):
    page = ElasticPage(three.view())
    three.add(three.job({"a": [{0: 2}]}, name="third"), outlook={"third": Outlook(starved=2)})
    change(three, "second", status="failed", error="ValueError: no")
    page.update()
    assert jobs_in(page)[0] == "third"
    assert page.select.value == "second"


def test_page_leaves_a_finished_job_for_one_in_trouble(three):
    page = ElasticPage(three.view())
    for name in ("first", "second"):
        change(three, name, status="finished")
    page.update()
    assert page.select.value == "third"


def test_job_in_the_url_is_shown_whatever_trouble_others_have(three):
    assert ElasticPage(three.view(), "first").select.value == "first"


# the table


def test_overview_shows_status_target_rate_lag_cores_and_dead_letters(three):
    load = InstanceLoad("rows", 1, 0.1, 0.2, lag=1.5)
    change(three, "first", flow=lambda: flow_of(load, letters={"valid": 1200, "a": 34}))
    page = ElasticPage(three.view())
    assert row_of(page, "first") == [
        "first", "running", "dead letters", "10 ms", "50 ms ✓", "700/s", "1.5 s", "2", "1,234", "–",
    ]  # fmt: skip
    assert row_of(page, "second")[2:5] == ["target missed", "200 ms", "50 ms ✗"]


def test_overview_shows_last_error_and_no_rates_of_failed_job(three):
    change(three, "first", status="failed", error="KeyError: <delay>\nmore")
    page = ElasticPage(three.view())
    assert row_of(page, "first") == [
        "first", "failed", "failed", "–", "50 ms", "–", "–", "–", "0", "KeyError: &lt;delay&gt;",
    ]  # fmt: skip


def test_jobs_are_sorted_by_their_worst_condition(three):
    change(three, "first", oversubscribed=True)
    page = ElasticPage(three.view())
    assert jobs_in(page) == ["second", "first", "third"]
    assert labels(page, "first") == [("warning", "oversubscribed")]
    assert labels(page, "second") == [("bad", "target missed")]


def test_one_slow_second_is_no_trouble(known):
    for latency in (0.01, 0.01, 0.01, 5.0):
        known.add(known.job({"a": [{0: 2}]}, latency=latency))
    assert labels(ElasticPage(known.view()), "flights") == []


@pytest.mark.parametrize(
    ("before", "newest", "shown"),
    [(0.01, 5.0, ["5 s", "50 ms ✗"]), (5.0, 0.01, ["10 ms", "50 ms ✓"]), (0.01, None, ["–", "50 ms"])],
)
def test_the_mark_of_a_target_belongs_to_the_latency_beside_it(known, before, newest, shown):
    for latency in (before, before, before, newest):
        known.add(known.job({"a": [{0: 2}]}, latency=latency))
    assert row_of(ElasticPage(known.view()), "flights")[3:5] == shown


def test_names_of_jobs_are_escaped_in_links(known):
    known.add(known.job({"a": [{0: 1}]}, name='x"<&?'))
    assert '<a href="elastic?job=x%22%3C%26%3F">x&quot;&lt;&amp;?</a>' in ElasticPage(known.view()).overview.root.text


def test_overview_of_many_jobs_is_cut(known):
    known.add(*(known.job({"a": [{0: 1}]}, name=f"job-{number}") for number in range(103)))
    page = ElasticPage(known.view())
    assert len(jobs_in(page)) == 100
    assert "and 3 more jobs" in page.overview.root.text


def test_field_is_shown_only_where_there_is_a_choice(known):
    known.add(known.job({"a": [{0: 1}]}))
    page = ElasticPage(known.view())
    assert not page.select.visible
    known.add(known.job({"a": [{0: 1}]}, name="other"))
    page.update()
    assert page.select.visible


# conditions and the graph


def test_page_shows_backpressure_bottleneck_lag_and_dead_letters(known):
    known.add(known.job({"a": [{0: 2}]}))
    loads = (
        InstanceLoad("rows", 1, 0.02, 0.95, lag=12.5),
        InstanceLoad("a", 2, 1.9, 0.0),
        InstanceLoad("out", 1, 0.1, 0.0),
    )
    change(known, "flights", flow=lambda: flow_of(*loads, letters={"valid": 7}))
    page = ElasticPage(known.view())
    headline, graph = page.headline.root.text, page.graph.root.text
    assert "Backpressure: rows waits for a, which is busy 95% of the time." in headline
    assert 'Dead letters: code raised on rows, 7 in valid. job.dead_letters("valid")' in headline.replace("&quot;", '"')
    assert ">12.5 s<" in headline
    assert [one in graph for one in (">rows<", ">valid<", ">a<", ">out<", ">900/s<", ">800/s<", ">700/s<")] == [
        True
    ] * 7
    assert ">bottleneck<" in graph
    assert page.graph.root.visible


def test_hot_shard_is_named(known):
    job = known.job({"a": [{0: 2}, {1: 1}], "b": [{0: 1}]})
    loads = {"a[0]": [0.1, 0.02, 0.0, 0.0], "a[1]": [0.1, 0.93, 0.1, 0.0], "b[0]": [0.3, 0.3, 0.3, 0.3]}
    executors = tuple(replace(one, shard_load=np.array(loads[str(one.executor)])) for one in job.executors)
    known.add(replace(job, executors=executors))
    page = ElasticPage(known.view())
    assert "Hot key in a: shard 1 of a[1] keeps a core 93% busy." in page.headline.root.text
    assert "Hot key in b" not in page.headline.root.text
    assert ">74%, 5.95× mean<" in page.operators.root.text
    assert ">25%, 1× mean<" in page.operators.root.text


# figures


def frames(page):
    """Return the figures with a time axis."""
    return [model.children[0] if hasattr(model, "children") else model for model in page.figures]


@pytest.mark.parametrize("executors", [2, 40])
def test_time_axes_of_all_figures_align(known, executors):
    known.nodes = executors
    known.add(known.job({"a_long_operator_name": [{index: 1} for index in range(executors)]}))
    made = frames(ElasticPage(known.view()))
    assert len(made) == 8
    assert len({figure.x_range.id for figure in made}) == 1
    for figure in made:
        assert (figure.min_border_left, figure.min_border_right) == (LEFT, RIGHT)
        # Whatever stands beside the frame, apart from the axis, would shift it.
        assert figure.right == []
        assert [model for model in figure.left if model not in figure.yaxis] == []
        labels = (getattr(figure.yaxis[0], "major_label_overrides", None) or {}).values()
        assert all(len(label) <= 10 for label in labels)


@pytest.mark.parametrize("nodes", [2, 40])
def test_nodes_link_to_dasks_pages_of_workers(known, nodes):
    known.nodes = nodes
    known.add(known.job({"a": [{index: 1} for index in range(nodes)]}))
    page = ElasticPage(known.view())
    text = page.workers.root.text
    assert '<a href="info/worker/tcp%3A%2F%2F10.0.0.1%3A4000.html">10.0.0.1:4000</a>' in text
    assert ("and <a" in text) == (nodes > 24)
    executors, by_node = frames(page)[:2]
    [opens] = by_node.js_event_callbacks["tap"]
    assert isinstance(opens, CustomJS)
    assert opens.code.count("info/worker/") == nodes
    assert "tap" not in executors.js_event_callbacks
