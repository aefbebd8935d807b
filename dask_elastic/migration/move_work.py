"""What moves of shards between nodes cost, in seconds of work, so that a planner can weigh them with the load.

Notes
-----
Decision 103. The cost of a move is the work that tasks have of it, and the work that waits while it is under way: the
shard's rows during its pause, and with a disruptive move those of its task. A pause counts once for the work of the
whole planning period, which is more than what arrives during the pause: when it ends, that comes at once. Partials of
an instant move are merged by the target, which processes nothing else meanwhile.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dask_elastic.migration.strategy import AUTO, DISRUPTIVE, INSTANT, LABELLED, MERGING

Floats = npt.NDArray[np.float64]

MOVE_SECONDS = 0.005
"""Work that any move takes: its label, the flush of its state, and what its rows find in no cache."""

MOST_PAUSE = 0.5
"""Bound of the expected pause in seconds: in an overload pauses are long, and moves are needed most."""

MOST_WAITING = 2.0
"""Seconds of work that a pause lets wait, at most: what a task does in a planning period. The rest waits anyway."""


class MoveSpeeds(NamedTuple):
    """What earlier moves have shown.

    Parameters
    ----------
    pause, label_pause : float
        Seconds for which a shard pauses whose state does not travel, and one with little state that waits for a label.
    bytes_per_second : float
        How fast state travels and is installed.
    merge_bytes_per_second : float
        How fast a task merges partials.
    """

    pause: float
    label_pause: float
    bytes_per_second: float
    merge_bytes_per_second: float


def work_of_moves(strategy: str, work: Floats, work_beside: Floats, state_bytes: Floats, speeds: MoveSpeeds) -> Floats:
    """Return what the move of each shard to another node costs.

    Parameters
    ----------
    strategy : str
        One of `migration.strategy.STRATEGIES`.
    work : float64 array
        The work of each shard in the planning period, in seconds.
    work_beside : float64 array
        That of the task that owns the shard.
    state_bytes : float64 array
        The bytes of each shard's state.
    speeds : MoveSpeeds
        What earlier moves have shown.

    Returns
    -------
    float64 array
        Seconds of work for each shard. With `auto`, those of the cheaper of a labelled and an instant move.

    Examples
    --------
    Rows wait for the state of a labelled move; that of an instant one is merged, which costs the same however many rows
    the shard has:

    >>> speeds = MoveSpeeds(pause=0.002, label_pause=0.002, bytes_per_second=1e8, merge_bytes_per_second=1e9)
    >>> work, state = np.array([0.5, 0.01]), np.full(2, 3e7)
    >>> work_of_moves("labelled", work, work, state, speeds).round(3).tolist()
    [0.156, 0.008]
    >>> work_of_moves("instant", work, work, state, speeds).round(3).tolist()
    [0.036, 0.035]
    >>> work_of_moves("auto", work, work, state, speeds).round(3).tolist()
    [0.036, 0.008]
    """
    if strategy == AUTO:
        every = [work_of_moves(one, work, work_beside, state_bytes, speeds) for one in (LABELLED, INSTANT)]
        return np.minimum(*every)
    if strategy in MERGING:
        pause = np.full(len(work), min(speeds.pause, MOST_PAUSE))
    else:
        pause = np.minimum(speeds.label_pause + state_bytes / speeds.bytes_per_second, MOST_PAUSE)
    merging = state_bytes / speeds.merge_bytes_per_second if strategy == INSTANT else 0.0
    waiting = np.minimum(work_beside if strategy == DISRUPTIVE else work, MOST_WAITING)
    cost: Floats = MOVE_SECONDS + pause * waiting + merging
    return cost
