"""Conditions that the owner of a job should know, such as a missed target or a hot key."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from dask_elastic.dashboard.key_skew import by_operator, key_skew
from dask_elastic.dashboard.quantities import count, duration, plural

if TYPE_CHECKING:
    from dask_elastic.control.history import JobHistory
    from dask_elastic.control.job_flow import JobFlow
    from dask_elastic.dashboard.checkpoints.taken import TakenCheckpoints
    from dask_elastic.dashboard.cluster_view import JobCard

BAD, WARNING, HINT = "bad", "warning", "hint"
SEVERITIES = (HINT, WARNING, BAD)
"""Severities, the worst last."""

TARGET_ROWS = 10
"""The mean latencies of so many snapshots are compared with the target, so that one slow second is no trouble."""

HOT = 0.8
"""Share of a core from which on a shard counts as hot."""


NAMED = 3
"""Number of operators that a sentence about dead letters names."""


class Condition(NamedTuple):
    """A condition of a job.

    Parameters
    ----------
    severity : str
        One of `SEVERITIES`.
    label : str
        One or two words, for a table.
    sentence : str
        What it is, and what to do.
    """

    severity: str
    label: str
    sentence: str


def conditions(card: JobCard, job: JobHistory | None, flow: JobFlow, problem: str | None = None) -> list[Condition]:
    """List the conditions of a job, the worst first.

    Parameters
    ----------
    card : JobCard
        The job's status.
    job : JobHistory or None
        The job's measures.
    flow : JobFlow
        The flow of rows through it.
    problem : str or None
        The error that stops the control loop, if any.
    """
    found = []
    if card.error:
        found.append(Condition(BAD, "failed", f"The job failed: {card.error}"))
    if card.live:
        if problem:
            text = f"The control loop has failed, so cores do not change: {problem}"
            found.append(Condition(BAD, "control failed", text))
        found += _measured(job) if job is not None else []
        found += _bottlenecks(flow)
        found += _checkpoints(card.checkpoints())
        if card.oversubscribed:
            text = "Oversubscribed: all jobs together have more executors than there are cores, so they share cores."
            found.append(Condition(WARNING, "oversubscribed", text))
    found += _dead_letters(flow.dead_letters)
    return sorted(found, key=lambda one: SEVERITIES.index(one.severity), reverse=True)


def _checkpoints(taken: TakenCheckpoints | None) -> list[Condition]:
    if taken is None or taken.status.given_up is None or not taken.status.failing:
        return []
    failed, newest = taken.status.given_up, taken.status.number
    back = f"checkpoint {newest}" if newest else "its beginning, as none is complete"
    text = f"Checkpoint {failed.number} was given up, so a restart would continue from {back}: {failed.error}"
    return [Condition(WARNING, "checkpoint failed", text)]


def _measured(job: JobHistory) -> list[Condition]:
    return _missed(job) + _starved(job.starved) + _bound(job.bound) + _infeasible(job) + _hot(job) + _modes(job)


def _missed(job: JobHistory) -> list[Condition]:
    target = job.latest().latency_target
    recent = [value for value in job.series("latency")[-TARGET_ROWS:] if math.isfinite(value)]
    if target is None or 2 * sum(value > target for value in recent) <= len(recent):
        return []
    text = f"The mean latency was above the target of {duration(target)} in most of the last {TARGET_ROWS} seconds."
    return [Condition(BAD, "target missed", text)]


def _starved(cores: int) -> list[Condition]:
    if not cores:
        return []
    text = f"Starved: {plural(cores, 'core')} missing. Add workers, or stop another job."
    return [Condition(BAD, "starved", text)]


def _bound(operators: Sequence[str]) -> list[Condition]:
    advice = "more cores on one node do not make it faster, so it grows on other nodes. Use workers with one thread."
    return [
        Condition(WARNING, "GIL-bound", f"{name} is GIL-bound: its code holds Python's interpreter lock; {advice}")
        for name in operators
    ]


def _infeasible(job: JobHistory) -> list[Condition]:
    decisions = job.decisions
    if not decisions or decisions[-1].feasible or decisions[-1].target is None:
        return []
    target = duration(decisions[-1].target)
    text = f"No allocation of the available cores reaches the target of {target}; this one is the best."
    return [Condition(WARNING, "out of reach", text)]


def _hot(job: JobHistory) -> list[Condition]:
    found = []
    for operator, executors in by_operator(job.latest().executors).items():
        skew = key_skew(executors)
        if skew is None or skew.load < HOT:
            continue
        text = (
            f"Hot key in {operator}: shard {skew.shard} of {skew.executor} keeps a core {skew.load:.0%} busy. One core "
            "at a time processes a shard, so more cores do not help; aggregate before this operator, or split the key."
        )
        found.append(Condition(WARNING, "hot key", text))
    return found


def _bottlenecks(flow: JobFlow) -> list[Condition]:
    busy = {one.name: one.busy for one in flow.operators}
    found = []
    for operator, waiting in flow.bottlenecks().items():
        names, verb = " and ".join(waiting), "waits" if len(waiting) == 1 else "wait"
        text = f"Backpressure: {names} {verb} for {operator}, which is busy {busy[operator] or 0.0:.0%} of the time."
        found.append(Condition(WARNING, "backpressure", text))
    return found


def _dead_letters(letters: Mapping[str, int]) -> list[Condition]:
    if not letters:
        return []
    most = sorted(letters, key=lambda operator: letters[operator], reverse=True)
    where = ", ".join(f"{count(letters[operator])} in {operator}" for operator in most[:NAMED])
    others = f" and in {plural(len(most) - NAMED, 'other operator')}" if len(most) > NAMED else ""
    text = f'Dead letters: code raised on rows, {where}{others}. job.dead_letters("{most[0]}") returns them.'
    return [Condition(WARNING, "dead letters", text)]


def _modes(job: JobHistory) -> list[Condition]:
    latest = job.latest()
    found = []
    if latest.dry_run:
        found.append(Condition(HINT, "dry run", "Dry run: decisions are logged, not carried out."))
    if latest.paradigm == "static":
        found.append(Condition(HINT, "static", "Paradigm static: cores and shards never move."))
    if latest.paradigm == "resource-centric":
        text = "Paradigm resource-centric: key groups move between executors of one core each."
        found.append(Condition(HINT, "resource-centric", text))
    if latest.latency_target is None:
        text = 'No latency target: submit the job with latency_target="50ms" to set one.'
        found.append(Condition(HINT, "no target", text))
    return found
