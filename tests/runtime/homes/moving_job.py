"""A job of a source, an operator and a sink, as one of its nodes sees it."""

from __future__ import annotations

from dask_elastic.runtime.config.job_options import job_options
from dask_elastic.runtime.protocol.job_spec import ComponentSummary, JobSpec

NODES = ("zero", "one", "two", "three", "four")


def spec(node=0):
    """A source on nodes 0 and 1, executors on nodes 1 and 2, and a sink beside these."""
    summaries = (
        ComponentSummary("rows", "source", (), ("rows",), 2, shards=1),
        ComponentSummary("op", "compute", ("rows",), ("op",), 2, shards=4),
        ComponentSummary("out", "sink", ("op",), ("out",), None, shards=1),
    )
    homes = {"rows": (0, 1), "op": (1, 2)}
    return JobSpec("job", 1, NODES, node, summaries, homes, {"op": ({1: 1}, {2: 1})}, job_options({}), guests=(3, 4))
