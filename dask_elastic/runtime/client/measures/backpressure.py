"""What the operators of a job wait for, as a section of its explanation."""

from __future__ import annotations

from collections.abc import Iterator

from dask_elastic.control.job_flow import InstanceLoad, job_flow
from dask_elastic.runtime.protocol.job_description import JobDescription


def backpressure_sections(described: JobDescription, operator: str | None = None) -> dict[str, str]:
    """Return which operators of a running job wait for which one, by title; empty if none does.

    Parameters
    ----------
    described : JobDescription
        The job.
    operator : str, optional
        Only if this operator waits, or others wait for it.
    """
    if not described.live:
        return {}
    structure = [(one.name, one.operators, one.kinds) for one in described.components]
    rates = {(edge.producer, edge.consumer): edge.rate for edge in described.edges}
    flow = job_flow(structure, rates, _loads(described), {})
    by_name = {one.name: one for one in flow.operators}
    lines = [
        _text(slow, by_name[slow].kind, by_name[slow].busy or 0.0, waiting)
        for slow, waiting in flow.bottlenecks().items()
        if operator in (None, slow, *waiting)
    ]
    return {"backpressure": "\n".join(lines)} if lines else {}


def _text(slow: str, kind: str, busy: float, waiting: list[str]) -> str:
    names, verb = " and ".join(waiting), "waits" if len(waiting) == 1 else "wait"
    more = ". More cores of computes do not help" if kind == "sink" else ""
    return f"{names} {verb} for {slow}, which is busy {busy:.0%} of the time{more}"


def _loads(described: JobDescription) -> Iterator[InstanceLoad]:
    for one in (*described.sources, *described.sinks):
        yield InstanceLoad(one.operator, 1, one.busy, one.backpressured)
    for part in described.executors:
        yield InstanceLoad(part.operator, part.cores, part.busy, part.backpressured)
