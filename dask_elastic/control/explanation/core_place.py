"""Why the cores of an executor are on their nodes, in sentences for users."""

from __future__ import annotations

from collections.abc import Mapping

from dask_elastic.control.explanation.amounts import cores, joined, size
from dask_elastic.control.settings import ControlSettings
from dask_elastic.planning.registry import planner
from dask_elastic.vocab.snapshot import ExecutorSnapshot, JobSnapshot, Snapshot


def place_reasons(
    executor: ExecutorSnapshot,
    job: JobSnapshot,
    snapshot: Snapshot,
    bound: Mapping[str, int],
    settings: ControlSettings,
) -> tuple[str, ...]:
    """Return why an executor's cores are on their nodes, and what it would cost to move one.

    Parameters
    ----------
    executor : ExecutorSnapshot
        The executor.
    job : JobSnapshot
        Its job.
    snapshot : Snapshot
        The cluster.
    bound : mapping of str to int
        GIL-bound operators, and how many cores per node speed them up.
    settings : ControlSettings
        The settings of the loop.

    Returns
    -------
    tuple of str
        Sentences without a full stop.
    """
    if job.paradigm != "executor-centric":
        return (_at_home(executor, snapshot), f"paradigm {job.paradigm!r}: its core stays at home")
    found = [_at_home(executor, snapshot), *_away(executor, snapshot, bound)]
    if planner(job.planner, "cores").first_fit:
        found.append(f"planner {job.planner!r} takes the first nodes with free cores, wherever home and state are")
    else:
        found += _intensity(executor, snapshot, settings)
    if executor.state_bytes and executor.total_cores:
        share = size(executor.state_bytes / executor.total_cores)
        found.append(f"state: {size(executor.state_bytes)}; a core that changes its node takes about {share} with it")
    return tuple(found)


def _at_home(executor: ExecutorSnapshot, snapshot: Snapshot) -> str:
    home = snapshot.nodes[executor.home]
    own = executor.cores.get(executor.home, 0)
    if own == executor.total_cores:
        return f"all are at its home {home.address}, where its receiver and its state are"
    if home.retiring:
        return f"its home {home.address} is retiring, so its cores leave it"
    return f"{own} of {cores(executor.total_cores)} {'is' if own == 1 else 'are'} at its home {home.address}"


def _away(executor: ExecutorSnapshot, snapshot: Snapshot, bound: Mapping[str, int]) -> list[str]:
    """Return where its remote cores are, and why they are not at home."""
    away = {node: count for node, count in executor.cores.items() if node != executor.home}
    if not away:
        return []
    host, name = snapshot.nodes[executor.home].host, executor.executor.component
    places = joined(
        f"{count} on {snapshot.nodes[node].address}, "
        f"{'its home’s host' if snapshot.nodes[node].host == host else 'another host'}"
        for node, count in sorted(away.items())
    )
    if name in bound:
        return [f"remote: {places}; threads of {name} hold the GIL, so cores of other nodes speed it up more"]
    held = sum(one.cores.get(executor.home, 0) for job in snapshot.jobs for one in job.executors)
    slots = snapshot.nodes[executor.home].cores
    if held >= slots:
        own = executor.cores.get(executor.home, 0)
        return [f"remote: {places}; its home has {slots} slots: {own} are its own, other executors have {held - own}"]
    return [f"remote: {places}; its home has {cores(slots - held)} free, and moving cores there would move state"]


def _intensity(executor: ExecutorSnapshot, snapshot: Snapshot, settings: ControlSettings) -> list[str]:
    """Return whether its bytes in and out require cores at home."""
    if not executor.total_cores or snapshot.nodes[executor.home].retiring:
        return []
    rate = (executor.bytes_in + executor.bytes_out) / executor.total_cores
    threshold = settings.locality_threshold
    if rate > threshold:
        return [f"locality: each core has {size(rate)}/s in and out, above {size(threshold)}/s, so it belongs at home"]
    return [f"locality: each core has {size(rate)}/s in and out; up to {size(threshold)}/s it may be on any node"]
