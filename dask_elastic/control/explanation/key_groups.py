"""Where key groups are, and what they exchange with those of other operators, in sentences for users."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dask_elastic.control.explanation.amounts import size
from dask_elastic.control.placement.choices import SPREAD
from dask_elastic.control.placement.group_map import GroupMap, GroupPair
from dask_elastic.control.placement.purpose import Purpose
from dask_elastic.control.reason import duration
from dask_elastic.vocab.snapshot import ExecutorSnapshot, JobSnapshot, Snapshot

SHOWN = 4
"""Number of groups of an executor, and of pairs of groups, that are named; the others are summed."""

LAST = 3
"""Number of moves of key groups that are shown."""


def group_texts(executor: ExecutorSnapshot, groups: GroupMap, snapshot: Snapshot) -> tuple[str, ...]:
    """Return what an executor's key groups need and exchange, those with the most load one by one.

    Parameters
    ----------
    executor : ExecutorSnapshot
        The executor.
    groups : GroupMap
        The key groups of its job.
    snapshot : Snapshot
        The cluster.

    Returns
    -------
    tuple of str
        Sentences without a full stop; none in a job whose key groups do not move.

    Examples
    --------
    >>> from dask_elastic.vocab.identity import ExecutorId
    >>> from dask_elastic.vocab.snapshot import NodeSnapshot
    >>> known = {"groups": np.array([0, 1]), "shard_load": np.array([0.3, 0.1]), "shard_bytes": np.array([2e6, 1e6])}
    >>> count = ExecutorSnapshot(ExecutorId("count", 0), 0, {0: 1}, 900.0, 600.0, **known)
    >>> job = JobSnapshot("words", 1, (count,), paradigm="resource-centric")
    >>> snapshot = Snapshot(0.0, (NodeSnapshot("tcp://a:1", "a", 2),), (job,))
    >>> for text in group_texts(count, GroupMap.of(job), snapshot):
    ...     print(text)
    2 of 2 groups; arriving rows keep 0.40 cores busy; 2.9 MiB of state
    no traffic with groups of other operators has been sampled
    group 0: 0.30 busy cores, 1.9 MiB of state
    group 1: 0.10 busy cores, 976.6 kiB of state
    """
    name = executor.executor.component
    operator = groups.operators.get(name)
    if operator is None or executor.groups is None:
        return ()
    owned = executor.groups
    total, within = groups.exchanged(name)
    load, nbytes = operator.load, operator.nbytes
    found = [
        f"{len(owned)} of {len(operator.owner)} groups; arriving rows keep {load[owned].sum():.2f} cores busy; "
        f"{size(nbytes[owned].sum())} of state",
        _within(float(total[owned].sum()), float(within[owned].sum())),
    ]
    heaviest = owned[np.argsort(-load[owned], kind="stable")]
    for group in heaviest[:SHOWN].tolist():
        exchanges = _exchanges(groups, name, group, executor.home, snapshot)
        found.append(f"group {group}: {load[group]:.2f} busy cores, {size(nbytes[group])} of state{exchanges}")
    rest = heaviest[SHOWN:]
    if len(rest):
        found.append(f"{len(rest)} others: {load[rest].sum():.2f} busy cores, {size(nbytes[rest].sum())} of state")
    return tuple(found)


def groups_section(
    groups: GroupMap,
    job: JobSnapshot,
    snapshot: Snapshot,
    decisions: Sequence[Mapping[str, Any]],
    operator: str | None = None,
) -> str:
    """Return the traffic between the key groups of a job, and why groups moved last, as lines.

    Parameters
    ----------
    groups : GroupMap
        The key groups of the job.
    job : JobSnapshot
        The job.
    snapshot : Snapshot
        The cluster.
    decisions : sequence of mapping
        The last decisions about the job, oldest first, as `Job.decisions` has them.
    operator : str, optional
        Only what concerns this operator.

    Returns
    -------
    str
        The lines; empty for a job whose key groups do not move.
    """
    if not groups.operators:
        return ""
    traffic = [one for one in groups.traffic if operator in (None, one.sender, one.receiver)]
    lines = [_planned_by(job.placement)]
    lines += [f"{one.sender} → {one.receiver}: {_within(one.total, float(one.within.sum()))}" for one in traffic]
    pairs = sorted((pair for one in traffic for pair in one.heaviest(SHOWN)), key=lambda pair: -pair.rate)
    lines += [f"  {_pair_text(pair, groups, snapshot)}" for pair in pairs[:SHOWN]]
    if not traffic:
        lines.append(_within(0.0, 0.0))
    shown = [name for name in groups.operators if operator in (None, name)]
    return "\n".join([*lines, *_last_moves(decisions, shown, snapshot.now)])


def _within(total: float, inside: float) -> str:
    if total <= 0:
        return "no traffic with groups of other operators has been sampled"
    return f"{100 * inside / total:.0f} % of {size(total)}/s stay on their worker"


def _exchanges(groups: GroupMap, operator: str, group: int, home: int, snapshot: Snapshot) -> str:
    """Return what a group exchanges, with which group most, and which other worker has more of it than its own."""
    by_node = groups.by_node(operator, group)
    total = float(by_node.sum())
    if total <= 0:
        return ""
    found = f"; {100 * by_node[home] / total:.0f} % of {size(total)}/s with groups on its worker"
    most = int(by_node.argmax())
    if by_node[most] > by_node[home]:
        found += f", {100 * by_node[most] / total:.0f} % on {snapshot.nodes[most].address}"
    for pair in groups.pairs(operator, group)[:1]:
        other = (pair.receiver, pair.target) if operator == pair.sender else (pair.sender, pair.source)
        where = "same worker" if pair.within else "another worker"
        found += f"; most, {size(pair.rate)}/s, with group {other[1]} of {other[0]}, {where}"
    return found


def _pair_text(pair: GroupPair, groups: GroupMap, snapshot: Snapshot) -> str:
    ends = []
    for name, group in ((pair.sender, pair.source), (pair.receiver, pair.target)):
        owner = groups.operators[name].executor(group)
        ends.append(f"group {group} of {owner.executor} on {snapshot.nodes[owner.home].address}")
    where = "same worker" if pair.within else "another worker"
    return f"{ends[0]} → {ends[1]}: {size(pair.rate)}/s, {where}"


def _planned_by(placement: str) -> str:
    if placement == SPREAD:
        return "no planner moves them: submit the job with placement=, or use move_groups"
    traffic = Purpose.of(placement) is Purpose.TRAFFIC
    return f"placement {placement!r} moves them for balance{' and for less traffic between workers' * traffic}"


def _last_moves(decisions: Sequence[Mapping[str, Any]], operators: Sequence[str], now: float) -> list[str]:
    """Return the last moves of the groups of some operators, newest first, and why they stay since then."""
    found: list[str] = []
    moves = 0
    stays: set[str] = set()
    for decision in reversed(decisions):
        reason, ago = decision["reason"], duration(max(now - decision["time"], 0.0))
        for name in operators:
            if any(what.endswith(f"of {name!r} moved") for what in decision.get("others", ())):
                moves += 1
                stays.add(name)
                found.append(f"moved {ago} ago, decision #{decision['number']}: {reason}")
            elif name not in stays and reason.startswith(f"{name!r}: Placement "):
                stays.add(name)
                found.append(f"decided {ago} ago: {reason}")
        if moves >= LAST:
            break
    return found
