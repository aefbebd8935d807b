"""Tests of the Prometheus metrics, parsed by Prometheus's own parser."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import pytest
from distributed import LocalCluster
from prometheus_client.parser import text_string_to_metric_families

from dask_elastic.control.job_flow import InstanceLoad, job_flow
from dask_elastic.dashboard.checkpoints.taken import TakenCheckpoints
from dask_elastic.dashboard.cluster_view import JobCard
from dask_elastic.dashboard.display import Display
from dask_elastic.vocab.checkpoint import CheckpointDescription, CheckpointStatus
from dask_elastic.vocab.plan import Outlook

Labels = frozenset[tuple[str, str]]


def parsed(text: str) -> dict[str, dict[Labels, float]]:
    """Return the elastic samples by name and labels; assert that each occurs once."""
    found: dict[str, dict[Labels, float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name.startswith("dask_elastic_"):
                samples = found.setdefault(sample.name.removeprefix("dask_elastic_"), {})
                labels = frozenset(sample.labels.items())
                assert labels not in samples, f"{sample} occurs twice"
                samples[labels] = sample.value
    return found


def value(samples: dict[str, dict[Labels, float]], name: str, **labels: str) -> float:
    return samples[name][frozenset(labels.items())]


@pytest.fixture
def metrics(get, address):
    return lambda: parsed(get(f"{address}/metrics"))


@pytest.fixture
def flights(known):
    """Two operators; per_plane[1] is on two nodes."""
    job = known.job({"per_plane": [{0: 2}, {1: 1, 2: 3}], "per_route": [{2: 1}]})
    known.add(job, outlook={"flights": Outlook(predicted=0.031, starved=2, bound=("per_route",))})
    return known


def test_executor_metrics_have_values_of_snapshot(flights, metrics):
    found = metrics()
    executor = {"job": "flights", "operator": "per_plane", "executor": "1"}
    assert value(found, "cores", **executor, node="tcp://10.0.0.1:4000") == 1
    assert value(found, "cores", **executor, node="tcp://10.0.0.2:4000") == 3
    assert sum(found["cores"].values()) == 7
    assert value(found, "arrival_rate", **executor) == 2400
    assert value(found, "service_rate", **executor) == 1000
    assert value(found, "throughput", **executor) == 2000
    assert value(found, "queue_tuples", **executor) == 28
    assert value(found, "state_bytes", **executor) == 4096
    assert value(found, "state_on_disk_bytes", **executor) == 0
    assert value(found, "moves_total", **executor) == 44
    assert len(found["throughput"]) == 3
    assert value(found, "source_rate", job="flights") == 700


def test_recovery_metrics_have_values_of_reports(flights, metrics):
    recoveries = {("per_plane", 0): (3, 0.2, 1.5), ("per_plane", 1): (0, None, None)}
    flights.cards["flights"] = replace(flights.cards["flights"], recoveries=lambda: recoveries)
    found = metrics()
    executor = {"job": "flights", "operator": "per_plane"}
    assert value(found, "recoveries_total", **executor, executor="0") == 3
    assert value(found, "recoveries_total", **executor, executor="1") == 0
    assert value(found, "recovery_seconds", **executor, executor="0", statistic="p50") == 0.2
    assert value(found, "recovery_seconds", **executor, executor="0", statistic="p99") == 1.5
    assert len(found["recovery_seconds"]) == 2


def test_job_metrics_have_values_of_snapshot(flights, metrics):
    found = metrics()
    assert value(found, "latency_seconds", job="flights", statistic="mean") == 0.02
    assert value(found, "latency_seconds", job="flights", statistic="p99") == 0.08
    assert value(found, "latency_predicted_seconds", job="flights") == 0.031
    assert value(found, "latency_target_seconds", job="flights") == 0.05
    assert value(found, "starved_cores", job="flights") == 2
    assert value(found, "gil_bound", job="flights", operator="per_route") == 1
    assert value(found, "gil_bound", job="flights", operator="per_plane") == 0
    assert value(found, "jobs", status="running") == 1
    assert value(found, "jobs", status="failed") == 0


def test_flow_metrics_have_values_of_reports(flights, metrics):
    structure = [("rows", ("rows", "valid"), ("source", "filter")), ("per_plane", ("per_plane",), ("compute",))]
    rates = {("rows", "valid"): 900.0, ("valid", "per_plane"): 800.0}
    loads = [InstanceLoad("rows", 1, 0.25, 0.5, lag=1.5), InstanceLoad("per_plane", 2, 1.0, 0.0)]
    flow = job_flow(structure, rates, loads, {"valid": 7})
    flights.cards["flights"] = replace(flights.cards["flights"], flow=lambda: flow)
    found = metrics()
    assert value(found, "busy_ratio", job="flights", operator="per_plane") == 0.5
    assert value(found, "backpressured_ratio", job="flights", operator="rows") == 0.5
    assert value(found, "source_lag_seconds", job="flights", operator="rows") == 1.5
    assert value(found, "edge_rate", job="flights", operator="valid", consumer="per_plane") == 800
    assert value(found, "dead_letters_total", job="flights", operator="valid") == 7
    assert len(found["busy_ratio"]) == 2
    assert len(found["source_lag_seconds"]) == 1
    flights.cards["flights"] = replace(flights.cards["flights"], status="finished", flow=flow.at_rest)
    assert metrics().keys() == {"jobs", "moves_total", "decisions_total", "dead_letters_total"}


def test_checkpoint_metrics_have_values_of_newest_complete_checkpoint(flights, metrics):
    assert "checkpoint_number" not in metrics()
    complete = CheckpointDescription(7, began=60.0, seconds=0.25, nbytes=2048, held=0.01)
    status = CheckpointStatus("/checkpoints", 7, 2.5, complete, None, given_up_count=3, restarts=2)
    flights.cards["flights"] = replace(flights.cards["flights"], checkpoints=lambda: TakenCheckpoints(status))
    found = metrics()
    assert value(found, "checkpoint_number", job="flights") == 7
    assert value(found, "checkpoint_age_seconds", job="flights") == 2.5
    assert value(found, "checkpoint_duration_seconds", job="flights") == 0.25
    assert value(found, "checkpoint_bytes", job="flights") == 2048
    assert value(found, "checkpoint_held_seconds", job="flights") == 0.01
    assert value(found, "checkpoints_given_up_total", job="flights") == 3
    assert value(found, "restarts_total", job="flights") == 2
    flights.cards["flights"] = replace(flights.cards["flights"], status="finished")
    assert {name for name in metrics() if "checkpoint" in name or "restart" in name} == {
        "checkpoints_given_up_total",
        "restarts_total",
    }


def test_job_without_complete_checkpoint_has_number_0_and_no_age(flights, metrics):
    status = CheckpointStatus("/checkpoints", 0, None, None, None, 0, 0)
    flights.cards["flights"] = replace(flights.cards["flights"], checkpoints=lambda: TakenCheckpoints(status))
    found = metrics()
    assert value(found, "checkpoint_number", job="flights") == 0
    assert not found.keys() & {"checkpoint_age_seconds", "checkpoint_bytes"}


def test_unknown_values_have_no_sample(known, metrics):
    known.add(known.job({"per_word": [{0: 1}]}, name="words", latency=None, latency_p99=None, latency_target=None))
    found = metrics()
    assert value(found, "cores", job="words", operator="per_word", executor="0", node="tcp://10.0.0.0:4000") == 1
    assert not found.keys() & {"latency_seconds", "latency_predicted_seconds", "latency_target_seconds"}


def test_ended_job_keeps_only_its_counters(flights, metrics):
    flights.cards["flights"] = replace(flights.cards["flights"], status="finished")
    found = metrics()
    assert found.keys() == {"jobs", "moves_total", "decisions_total"}
    assert value(found, "jobs", status="finished") == 1
    assert sum(found["moves_total"].values()) == 77


def test_decisions_dropped_by_the_log_stay_counted(flights, metrics):
    flights.decided = [flights.decision(number, applied=number != 1) for number in range(3)]
    assert value(metrics(), "decisions_total", job="flights", applied="true") == 2
    flights.decided = [flights.decision(number) for number in range(2, 5)]
    found = metrics()
    assert value(found, "decisions_total", job="flights", applied="true") == 4
    assert value(found, "decisions_total", job="flights", applied="false") == 1


def test_decisions_about_forgotten_job_are_counted_no_more(flights, metrics):
    flights.decided = [flights.decision(number) for number in range(3)]
    assert value(metrics(), "decisions_total", job="flights", applied="true") == 3
    card = flights.cards.pop("flights")
    assert "decisions_total" not in metrics()
    flights.cards["flights"] = card
    flights.decided = []
    assert value(metrics(), "decisions_total", job="flights", applied="true") == 0


def test_decision_counter_restarts_with_new_generation(flights, metrics):
    flights.decided = [flights.decision(number) for number in range(3)]
    metrics()
    flights.add(flights.job({"per_plane": [{0: 1}]}, generation=2))
    flights.decided.append(flights.decision(3, generation=2))
    assert value(metrics(), "decisions_total", job="flights", applied="true") == 1


def test_special_characters_in_job_names_are_escaped(known, metrics):
    name = 'a "job"\\ of\nlines'
    known.add(known.job({"per {x}": [{0: 1}]}, name=name))
    assert value(metrics(), "starved_cores", job=name) == 0


def test_every_metric_has_help_text_and_type(flights, get, address):
    families = {family.name: family for family in text_string_to_metric_families(get(f"{address}/metrics"))}
    ours = {name: family for name, family in families.items() if name.startswith("dask_elastic_")}
    assert len(ours) == 34
    assert all(family.documentation for family in ours.values())
    assert {name for name, family in ours.items() if family.type == "counter"} == {
        "dask_elastic_moves",
        "dask_elastic_decisions",
        "dask_elastic_dead_letters",
        "dask_elastic_recoveries",
        "dask_elastic_checkpoints_given_up",
        "dask_elastic_restarts",
        "dask_elastic_window_rows",
    }
    assert "dask_scheduler_workers" in families


def test_metrics_of_two_schedulers_have_a_scheduler_label(flights, metrics, call_on_loop, scheduler_host):
    with LocalCluster(n_workers=0, processes=False, dashboard_address="127.0.0.1:0") as other:
        second = Display(other.scheduler, flights.view())
        call_on_loop(other, second.open)
        found = metrics()
        addresses = {dict(labels)["scheduler"] for labels in found["starved_cores"]}
        assert addresses == {scheduler_host.scheduler.address, other.scheduler.address}
        call_on_loop(other, second.close)
    assert value(metrics(), "starved_cores", job="flights") == 2


def test_metrics_are_removed_when_display_closes_and_return_when_it_opens(
    flights, metrics, display, call_on_loop, scheduler_host
):
    call_on_loop(scheduler_host, display.close)
    assert metrics() == {}
    call_on_loop(scheduler_host, display.open)
    assert value(metrics(), "starved_cores", job="flights") == 2


def test_error_in_elastic_metrics_keeps_metrics_of_dask(known, get, address, caplog, monkeypatch):
    def fail(*arguments: Any) -> list[JobCard]:
        raise ArithmeticError("broken cards")

    monkeypatch.setattr("dask_elastic.dashboard.cluster_view.ClusterView.cards", fail)
    with caplog.at_level(logging.ERROR, logger="dask_elastic.scheduler"):
        text = get(f"{address}/metrics")
    assert "dask_scheduler_workers" in text
    assert "broken cards" in caplog.text
