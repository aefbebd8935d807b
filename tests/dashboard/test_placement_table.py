"""The page and the metrics show where executors and key groups are, and how much of their traffic is local."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from dask_elastic.dashboard.workers.placement_table import ROWS, PlacementTable
from dask_elastic.vocab.group_flow import OTHERS, GroupFlow
from dask_elastic.vocab.snapshot import SourceHome, Traffic

KIB = 1024.0


def with_inputs(job):
    """The job with a source on the first node, which sends to each executor of `per_plane`."""
    traffic = (Traffic("rows", 0, 3 * KIB), Traffic("rows", 1, KIB))
    executors = tuple(
        replace(one, traffic=traffic) if one.executor.component == "per_plane" else one for one in job.executors
    )
    return replace(job, executors=executors, sources=(SourceHome("rows", 0, 0), SourceHome("rows", 1, 1)))


def with_groups(job):
    """The job with two key groups in each executor; `per_plane` sends to `per_route`, most of it to other workers."""
    flow = GroupFlow("per_route", np.array([0, 1, 1]), np.array([0, 2, OTHERS]), np.array([1.0, 6.0, 1.0]) * KIB)
    executors = []
    for one in job.executors:
        groups = np.array([2 * one.executor.index, 2 * one.executor.index + 1])
        sends = one.executor.component == "per_plane" and one.executor.index == 0
        executors.append(replace(one, groups=groups, flows=(flow,) if sends else ()))
    return replace(job, executors=tuple(executors), paradigm="resource-centric")


def shown(known):
    table = PlacementTable()
    table.update(known.history.job("flights"))
    return table.root.text


def rows(text):
    """The cells of each row of each table, without its head."""
    found = [re.findall(r"<td[^>]*>(.*?)</td>", row) for row in text.split("<tr>")]
    return [[re.sub(r"<[^>]*>", "", cell) for cell in cells] for cells in found if cells]


def test_table_shows_load_state_and_local_input_by_operator_and_worker(known):
    known.add(with_inputs(known.job({"per_plane": [{0: 1}, {1: 2}], "per_route": [{1: 1}]})))
    text = shown(known)
    assert rows(text) == [
        ["per_plane", "10.0.0.0:4000", "1", "0.60", "1 KiB", "4 KiB/s", "75%"],
        ["per_plane", "10.0.0.1:4000", "1", "1.20", "2 KiB", "4 KiB/s", "25%"],
        ["per_route", "10.0.0.1:4000", "1", "0.60", "1 KiB", "–", "–"],
    ]
    assert "key groups" not in text


def test_table_of_job_with_key_groups_shows_their_traffic_and_the_heaviest_pairs(known):
    known.add(with_groups(known.job({"per_plane": [{0: 1}, {1: 1}], "per_route": [{0: 1}, {1: 1}]})))
    text = shown(known)
    # Half of what goes to all other groups stays; so 1.5 of 8 KiB/s do.
    assert [row[7:] for row in rows(text)[:4]] == [
        ["2", "8 KiB/s", "19%"],
        ["2", "–", "–"],
        ["2", "1.5 KiB/s", "100%"],
        ["2", "6.5 KiB/s", "0%"],
    ]
    assert rows(text)[4:] == [
        [
            "group 1 of per_plane[0]", "10.0.0.0:4000", "group 2 of per_route[1]", "10.0.0.1:4000",
            "6 KiB/s", "between workers",
        ],
        ["group 0 of per_plane[0]", "10.0.0.0:4000", "group 0 of per_route[0]", "10.0.0.0:4000", "1 KiB/s", ""],
    ]  # fmt: skip
    assert "per_plane → per_route: 19% of 8 KiB/s within workers" in text


def test_traffic_is_shown_while_it_is_measured_anew_after_a_move(known):
    job = with_groups(known.job({"per_plane": [{0: 1}, {1: 1}], "per_route": [{0: 1}, {1: 1}]}))
    known.add(job)
    first, second, third, fourth = (replace(one, flows=()) for one in job.executors)
    groups = [replace(third, groups=np.array([0, 1, 2])), replace(fourth, groups=np.array([3]))]
    known.add(replace(job, executors=(first, second, *groups)))
    assert "per_plane → per_route: 97% of 8 KiB/s within workers" in shown(known)


def test_table_has_the_rows_with_the_most_load_and_counts_the_others(known):
    known.nodes = ROWS + 2
    known.add(known.job({"per_plane": [{node: 2 if node else 1} for node in range(ROWS + 2)]}))
    text = shown(known)
    assert len(rows(text)) == ROWS
    assert ">10.0.0.0:4000<" not in text
    assert "and 2 more rows with less load" in text


def test_table_is_empty_before_anything_is_measured():
    table = PlacementTable()
    table.update(None)
    assert table.root.text == ""


def test_metrics_have_traffic_between_key_groups_by_whether_it_stays_on_a_worker(known, get, address):
    known.add(with_groups(known.job({"per_plane": [{0: 1}, {1: 1}], "per_route": [{0: 1}, {1: 1}]})))
    found = {
        sample.labels["same_worker"]: sample.value
        for family in text_string_to_metric_families(get(f"{address}/metrics"))
        for sample in family.samples
        if sample.name == "dask_elastic_group_traffic_rate"
    }
    assert found == {"true": pytest.approx(1.5 * KIB), "false": pytest.approx(6.5 * KIB)}
