"""Decisions about a job as a data frame, on request with the moves of shards that they led to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dask_elastic.runtime.client.data_frame import data_frame

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = (
    "number", "time", "target", "measured", "predicted", "observed", "feasible", "applied", "reason", "wanted",
    "changes", "starved", "bound", "moved_bytes", "seconds", "homes", "others",
)  # fmt: skip


def decisions_frame(decided: list[dict[str, Any]], moves: pd.DataFrame | None, last: int | None) -> pd.DataFrame:
    """Return decisions as a data frame, see `Job.decisions`.

    Parameters
    ----------
    decided : list of dict
        The decisions as the scheduler answers them, oldest first.
    moves : pandas.DataFrame or None
        The moves of shards, as `Job.moves` returns them; those between workers are rows, too. None without any.
    last : int or None
        How many rows at most, the newest ones.
    """
    if moves is None:
        return data_frame(decided, [*COLUMNS])
    made = [move for move in moves.to_dict("records") if move["across_nodes"]]
    rows = [*decided, *map(_move_as_decision, made)]
    found = data_frame(rows, [*COLUMNS, "move"]).sort_values("time", ignore_index=True, kind="stable")
    return found if last is None else found.iloc[max(0, len(found) - last) :].reset_index(drop=True)


def _move_as_decision(move: dict[str, Any]) -> dict[str, Any]:
    """Return a move of a shard as a decision."""
    reason = f"shard {move['shard']} of {move['operator']}[{move['executor']}] moved by strategy {move['strategy']!r}"
    if move["reason"]:
        reason += f", {move['reason']}"
    none: dict[str, list[Any]] = {"changes": [], "bound": [], "homes": [], "others": []}
    return {
        "time": move["ended"],
        "applied": True,
        "feasible": True,
        "reason": reason,
        "wanted": {},
        **none,
        "move": move,
    }
