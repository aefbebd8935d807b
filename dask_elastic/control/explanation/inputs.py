"""What an executor gets from each upstream instance, and how far away that is, in sentences for users."""

from __future__ import annotations

from dask_elastic.control.explanation.amounts import size
from dask_elastic.vocab.identity import ExecutorId
from dask_elastic.vocab.snapshot import ExecutorSnapshot, JobSnapshot, Snapshot

SHOWN = 5
"""Number of upstream instances that are named; the others are summed."""


def input_texts(executor: ExecutorSnapshot, job: JobSnapshot, snapshot: Snapshot) -> tuple[str, ...]:
    """Return an executor's traffic by upstream instance, heaviest first.

    Parameters
    ----------
    executor : ExecutorSnapshot
        The executor.
    job : JobSnapshot
        Its job.
    snapshot : Snapshot
        The cluster.

    Returns
    -------
    tuple of str
        How much of its traffic stays on its worker, then one text for each upstream instance.

    Examples
    --------
    >>> from dask_elastic.vocab.snapshot import NodeSnapshot, SourceHome, Traffic
    >>> traffic = (Traffic("rows", 0, 3 * 2.0**20), Traffic("rows", 1, 2.0**20))
    >>> executor = ExecutorSnapshot(ExecutorId("count", 0), 0, {0: 1}, 900.0, 600.0, traffic=traffic)
    >>> nodes = (NodeSnapshot("tcp://a:1", "a", 2), NodeSnapshot("tcp://a:2", "a", 2))
    >>> job = JobSnapshot("words", 1, (executor,), sources=(SourceHome("rows", 0, 0), SourceHome("rows", 1, 1)))
    >>> print(*input_texts(executor, job, Snapshot(0.0, nodes, (job,))), sep="; ")
    75 % of 4.0 MiB/s come from its worker; 3.0 MiB/s from rows[0], same worker; 1.0 MiB/s from rows[1], same host
    """
    total = sum(part.rate for part in executor.traffic)
    if not total:
        return ()
    nodes = {ExecutorId(one.component, one.index): one.node for one in job.sources}
    nodes |= {one.executor: one.home for one in job.executors}
    origins = [(ExecutorId(part.component, part.index), part.rate) for part in executor.traffic]
    own = sum(rate for origin, rate in origins if nodes.get(origin) == executor.home)
    found = [f"{100 * own / total:.0f} % of {size(total)}/s come from its worker"]
    for origin, rate in origins[:SHOWN]:
        found.append(f"{size(rate)}/s from {origin}, {_distance(nodes.get(origin), executor.home, snapshot)}")
    if len(origins) > SHOWN:
        rest = sum(rate for _, rate in origins[SHOWN:])
        found.append(f"{size(rest)}/s from {len(origins) - SHOWN} others")
    return tuple(found)


def _distance(node: int | None, home: int, snapshot: Snapshot) -> str:
    if node is None:
        return "unknown worker"
    if node == home:
        return "same worker"
    return "same host" if snapshot.nodes[node].host == snapshot.nodes[home].host else "another host"
