"""Formats decisions of the control loop as text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dask_elastic.cli.terminal.quantities import clock, duration
from dask_elastic.vocab.counted import counted


def gained(before: Mapping[str, int], after: Mapping[str, int]) -> int:
    """Return the number of cores in `after` that were not in `before`, counted per worker.

    Examples
    --------
    >>> gained({"tcp://a:1": 2}, {"tcp://a:1": 1, "tcp://b:1": 3})
    3
    """
    return sum(max(0, count - before.get(worker, 0)) for worker, count in after.items())


def change_text(change: Mapping[str, Any]) -> str:
    """Describe the change of one executor's cores.

    Examples
    --------
    >>> change_text({"executor": "per_key[0]", "before": {"tcp://a:1": 1}, "after": {"tcp://a:1": 1, "tcp://b:1": 1}})
    'per_key[0] 1 → 2 cores'
    >>> change_text({"executor": "per_key[0]", "before": {"tcp://a:1": 2}, "after": {"tcp://a:1": 1, "tcp://b:1": 1}})
    'per_key[0] 2 cores, 1 on another worker than before'
    """
    before, after = change["before"], change["after"]
    had, has = sum(before.values()), sum(after.values())
    if had != has:
        return f"{change['executor']} {had} → {counted(has, 'core')}"
    return f"{change['executor']} {counted(has, 'core')}, {gained(before, after)} on another worker than before"


def changes_text(decision: Mapping[str, Any]) -> str:
    """Describe all changes of a decision, and whether they were carried out.

    Examples
    --------
    >>> moved = {"executor": "per_key[0]", "source": "tcp://a:1", "target": "tcp://b:1"}
    >>> changes_text({"changes": [], "homes": [moved], "applied": True})
    'per_key[0] tcp://a:1 → tcp://b:1'
    >>> changes_text({"changes": [], "homes": [moved], "applied": False})
    'per_key[0] tcp://a:1 → tcp://b:1 (not carried out)'
    >>> changes_text({"changes": [], "others": ["2 key groups of 'per_key' moved"], "applied": True})
    "2 key groups of 'per_key' moved"
    """
    homes = [f"{home['executor']} {home['source']} → {home['target']}" for home in decision.get("homes", ())]
    listed = [*map(change_text, decision["changes"]), *homes, *decision.get("others", ())]
    changes = "; ".join(listed) or "no change"
    return changes if decision["applied"] or not listed else f"{changes} (not carried out)"


def decision_text(decision: Mapping[str, Any]) -> tuple[str, list[str]]:
    """Return a decision as a headline with its changes, and as lines with the latencies concerned and its reason."""
    latencies = [
        f"{name} {duration(decision[name])}"
        for name in ("target", "measured", "predicted", "observed")
        if decision[name] is not None
    ]
    headline = f"#{decision['number']}  {clock(decision['time'])}  {changes_text(decision)}"
    return headline, [*(["latency: " + ", ".join(latencies)] * bool(latencies)), *decision["reason"].splitlines()]
