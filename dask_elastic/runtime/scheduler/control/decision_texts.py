"""Decisions and snapshots as the scheduler answers and publishes them: plain values, with nodes by their addresses."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from itertools import islice
from typing import Any

from dask_elastic.control.recording import decision_to_dict, dumps
from dask_elastic.runtime.protocol.codec import Payload
from dask_elastic.runtime.transport.switching import ShortTurns, responsive
from dask_elastic.vocab.plan import Decision, HomeChange
from dask_elastic.vocab.snapshot import Snapshot

EVENT_ENTRIES = 100
"""With 3,000 executors, a thousand events with all changes took gigabytes of the scheduler's memory."""


def decisions_text(decisions: Iterable[tuple[Decision, list[str]]]) -> Payload:
    """Return decisions as a JSON list; each comes with the addresses of the nodes in the order of its snapshot."""
    pause = ShortTurns()
    parts = [b"["]
    with responsive():
        for decision, addresses in decisions:
            parts += [json.dumps(decision_message(decision, addresses)).encode(), b","]
            pause()
    # In a large job it is hundreds of megabytes: text would be copied with the interpreter lock held, bytes are not.
    return Payload(b"".join([*parts[: max(1, len(parts) - 1)], b"]"]))


def recording_text(snapshots: list[Snapshot]) -> Payload:
    """Return snapshots as a recording."""
    with responsive():
        return Payload(dumps(snapshots, ShortTurns()))


def event_message(decision: Decision, addresses: list[str]) -> dict[str, Any]:
    """Return a decision as an event of Dask, which keeps a thousand of them: of long lists, only the first entries.

    Parameters
    ----------
    decision : Decision
        The decision.
    addresses : list of str
        The addresses of the nodes in the order of its snapshot.

    Returns
    -------
    dict
        As `decision_message`, with at most `EVENT_ENTRIES` of ``changes``, ``homes`` and ``wanted``. ``left_off`` has
        how many of each are not in it; `Job.decisions` has them all.
    """
    whole = {"changes": len(decision.changes), "homes": len(decision.homes), "wanted": len(decision.wanted)}
    part = replace(
        decision,
        changes=decision.changes[:EVENT_ENTRIES],
        homes=decision.homes[:EVENT_ENTRIES],
        wanted=dict(islice(decision.wanted.items(), EVENT_ENTRIES)),
    )
    left_off = {name: count - EVENT_ENTRIES for name, count in whole.items() if count > EVENT_ENTRIES}
    return {**decision_message(part, addresses), "left_off": left_off}


def decision_message(decision: Decision, addresses: list[str]) -> dict[str, Any]:
    """Return a decision as plain values that need no snapshot to be understood: nodes by their addresses."""
    changes = [
        {
            "executor": str(change.executor),
            "before": {addresses[node]: count for node, count in change.before.items()},
            "after": {addresses[node]: count for node, count in change.after.items()},
            "moved_bytes": change.moved_bytes,
        }
        for change in decision.changes
    ]
    wanted = {str(executor): int(count) for executor, count in decision.wanted.items()}
    homes = [_home_message(change) for change in decision.homes]
    others = decision_to_dict(replace(decision, wanted={}, changes=(), homes=()))
    return {**others, "wanted": wanted, "changes": changes, "homes": homes}


def _home_message(change: HomeChange) -> dict[str, Any]:
    """Return a move of a home as plain values, a tenth as long as `dataclasses.asdict` takes."""
    forecast = change.forecast
    if forecast is None:
        return {**vars(change), "executor": str(change.executor)}
    costs = tuple({**vars(cost)} for cost in forecast.costs)
    return {**vars(change), "executor": str(change.executor), "forecast": {**vars(forecast), "costs": costs}}
