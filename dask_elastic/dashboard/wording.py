"""Formats decisions and core changes as text."""

from __future__ import annotations

from dask_elastic.dashboard.quantities import plural, size
from dask_elastic.vocab.cores.core_change import CoreChange
from dask_elastic.vocab.plan import Decision, HomeChange

NAMED_CHANGES = 4
"""Number of changes of a decision that are listed; further ones are counted."""


def change_in_words(change: CoreChange) -> str:
    """Describe the change of an executor's cores.

    Examples
    --------
    >>> from dask_elastic.vocab.identity import ExecutorId
    >>> executor = ExecutorId("per_route", 0)
    >>> change_in_words(CoreChange("flights", 1, executor, before={0: 2}, after={0: 2, 1: 1}))
    'per_route[0]: 2 → 3 cores, now on 2 nodes'
    >>> change_in_words(CoreChange("flights", 1, executor, before={0: 2, 1: 1}, after={0: 3}))
    'per_route[0]: keeps 3 cores, 1 of them moves to another node'
    """
    had, has = sum(change.before.values()), sum(change.after.values())
    if had != has:
        spread = f", now on {plural(len(change.after), 'node')}" if len(change.after) != len(change.before) else ""
        return f"{change.executor}: {had} → {plural(has, 'core')}{spread}"
    moved = sum(max(0, count - change.before.get(node, 0)) for node, count in change.after.items())
    moves = f"{moved} of them {'moves' if moved == 1 else 'move'} to another node" if moved < has else "on other nodes"
    return f"{change.executor}: keeps {plural(has, 'core')}, {moves}"


def home_in_words(change: HomeChange) -> str:
    """Describe the move of an executor's home.

    Examples
    --------
    >>> from dask_elastic.vocab.identity import ExecutorId
    >>> home_in_words(HomeChange(ExecutorId("per_route", 0), "tcp://a:1", "tcp://b:1", 2e6, 0.012))
    'per_route[0]: from tcp://a:1 to tcp://b:1'
    """
    return f"{change.executor}: from {change.source} to {change.target}"


def changes_in_words(decision: Decision) -> list[str]:
    """Describe the changes of a decision, one line each, at most a few lines.

    Examples
    --------
    >>> moved = ("2 key groups of 'per_route' moved",)
    >>> changes_in_words(
    ...     Decision(1, 0.0, "flights", 1, None, None, None, True, {}, (), True, "", moved_bytes=2e6, others=moved)
    ... )
    ["2 key groups of 'per_route' moved", '1.91 MiB of state move to another executor']
    """
    named = [change_in_words(change) for change in decision.changes[:NAMED_CHANGES]]
    named += [*map(home_in_words, decision.homes), *decision.others]
    more = max(0, len(decision.changes) - NAMED_CHANGES)
    if more > 0:
        named.append(f"and {more} more")
    if not named:
        return ["no change"]
    if decision.moved_bytes:
        where = "executor" if decision.others else "node"
        named.append(f"{size(decision.moved_bytes)} of state move to another {where}")
    return named
