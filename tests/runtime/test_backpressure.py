"""Explanations of jobs say which operators wait for which one."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from dask_elastic.runtime.client.measures.backpressure import backpressure_sections
from dask_elastic.runtime.protocol.job_description import ComponentDescription
from dask_elastic.runtime.protocol.reports import EdgeRate, InstanceRows

COMPONENTS = (
    ComponentDescription("rows", "source", (), ("rows", "valid"), False, ("source", "filter")),
    ComponentDescription("count", "compute", ("rows",), ("count",), False, ("compute",)),
    ComponentDescription("out", "sink", ("count",), ("out",), False, ("sink",)),
)
EDGES = (EdgeRate("rows", "valid", 90.0), EdgeRate("valid", "count", 80.0), EdgeRate("count", "out", 80.0))


def described(source=(0.0, 0.0), compute=(0.0, 0.0), sink=0.0, live=True):
    """A job whose parts are busy and wait for these shares of the time."""
    return SimpleNamespace(
        live=live, components=COMPONENTS, edges=EDGES,
        sources=[InstanceRows("rows", 0, 10, 1.0, *source)], sinks=[InstanceRows("out", 0, 10, 1.0, sink)],
        executors=[SimpleNamespace(operator="count", cores=2, busy=2 * compute[0], backpressured=compute[1])],
    )  # fmt: skip


SLOW_SINK = {"source": (0.01, 0.98), "compute": (0.02, 0.97), "sink": 0.99}


def test_operator_that_waits_for_a_sink_is_named_with_it():
    text = "count waits for out, which is busy 99% of the time. More cores of computes do not help"
    assert backpressure_sections(described(**SLOW_SINK)) == {"backpressure": text}


@pytest.mark.parametrize(("operator", "told"), [("count", True), ("out", True), ("rows", False), (None, True)])
def test_only_what_concerns_the_operator_is_told(operator, told):
    assert bool(backpressure_sections(described(**SLOW_SINK), operator)) is told


def test_cores_may_help_a_slow_compute():
    found = backpressure_sections(described(source=(0.01, 0.98), compute=(1.0, 0.0), sink=0.1))
    assert found == {"backpressure": "rows waits for count, which is busy 100% of the time"}


def test_job_that_does_not_wait_or_has_ended_has_no_such_section():
    assert backpressure_sections(described(compute=(0.9, 0.05), sink=0.1)) == {}
    assert backpressure_sections(described(**SLOW_SINK, live=False)) == {}
