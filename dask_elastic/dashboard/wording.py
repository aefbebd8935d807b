"""Formats decisions, core changes and conditions of a job as text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dask_elastic.dashboard.quantities import duration, plural, size
from dask_elastic.vocab.plan import CoreChange, Decision

if TYPE_CHECKING:
    from dask_elastic.control.history import JobHistory
    from dask_elastic.dashboard.cluster_view import JobCard

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


def changes_in_words(decision: Decision) -> list[str]:
    """Describe the changes of a decision, one line each, at most a few lines."""
    named = [change_in_words(change) for change in decision.changes[:NAMED_CHANGES]]
    more = len(decision.changes) - len(named)
    if more > 0:
        named.append(f"and {more} more")
    if not named:
        return ["no change"]
    if decision.moved_bytes:
        named.append(f"{size(decision.moved_bytes)} of state move to another node")
    return named


def conditions(card: JobCard, job: JobHistory | None, problem: str | None) -> list[tuple[str, str]]:
    """List the conditions that the owner of a job should know.

    Parameters
    ----------
    card : JobCard
        The job's status.
    job : JobHistory or None
        The job's measures.
    problem : str or None
        The error that stops the control loop, if any.

    Returns
    -------
    list of (str, str)
        Severity (``"bad"``, ``"warning"`` or ``"hint"``) and a sentence.
    """
    found = []
    if card.error:
        found.append(("bad", f"The job failed: {card.error}"))
    if not card.live:
        return found
    if problem:
        found.append(("bad", f"The control loop has failed, so cores do not change: {problem}"))
    if job is not None:
        found += _starved(job.starved) + _bound(job.bound) + _infeasible(job) + _modes(job)
    if card.oversubscribed:
        found.append(
            (
                "warning",
                "Oversubscribed: there are more executors than cores, so executors share cores.",
            )
        )
    return found


def _starved(cores: int) -> list[tuple[str, str]]:
    if not cores:
        return []
    return [("bad", f"Starved: {plural(cores, 'core')} missing. Add workers, or stop another job.")]


def _bound(operators: Sequence[str]) -> list[tuple[str, str]]:
    advice = "more cores on one node do not make it faster, so it grows on other nodes. Use workers with one thread."
    return [
        ("warning", f"{name} is GIL-bound: its code holds Python's interpreter lock; {advice}") for name in operators
    ]


def _infeasible(job: JobHistory) -> list[tuple[str, str]]:
    decisions = job.decisions
    if not decisions or decisions[-1].feasible or decisions[-1].target is None:
        return []
    target = duration(decisions[-1].target)
    return [("warning", f"No allocation of the available cores reaches the target of {target}; this one is the best.")]


def _modes(job: JobHistory) -> list[tuple[str, str]]:
    latest = job.latest()
    found = []
    if latest.dry_run:
        found.append(("hint", "Dry run: decisions are logged, not carried out."))
    if latest.paradigm == "static":
        found.append(("hint", "Paradigm static: cores and shards never move."))
    if latest.latency_target is None:
        found.append(("hint", 'No latency target: submit the job with latency_target="50ms" to set one.'))
    return found
