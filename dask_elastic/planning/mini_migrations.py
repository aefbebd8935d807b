"""Splitting a migration into mini-migrations, each of which fills the uplinks and downlinks of the nodes."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.optimize import linear_sum_assignment

from dask_elastic.vocab.errors import PlanningError


@dataclass(frozen=True, slots=True)
class GroupTransfer:
    """A key group that is to change executor.

    Parameters
    ----------
    group : int
        The group.
    executor : int
        Its next executor.
    source, target : int
        The homes of its executor and of the next one.
    nbytes : int
        The size of its state.
    """

    group: int
    executor: int
    source: int
    target: int
    nbytes: int


def mini_migrations(transfers: Iterable[GroupTransfer], most_groups: int) -> list[list[GroupTransfer]]:
    """Split a migration into a sequence of mini-migrations.

    Parameters
    ----------
    transfers : iterable of GroupTransfer
        The groups that move; each once.
    most_groups : int
        The most groups that one mini-migration moves.

    Returns
    -------
    list of list of GroupTransfer
        The mini-migrations, in order.

    Raises
    ------
    PlanningError
        If `most_groups` is below 1, or a group is to move twice; names it.

    Notes
    -----
    State migration, section 3.2: a migration is split so that few groups wait at a time, and transfers are scheduled in
    phases, each of which uses uplink and downlink of every node. Here a phase is a matching between sending and
    receiving nodes that includes all nodes that have the most groups left to send or to receive. Such a matching always
    exists in a bipartite graph, so that there are as many phases as the busiest link has groups, the least possible.
    Groups are indivisible; of the transfers between two nodes the largest come first, so that those of one phase are of
    similar size. A mini-migration consists of as many phases as `most_groups` allows, or of a part of one. Transfers
    within a node use no link, and fill what is left.

    Examples
    --------
    >>> there, back = GroupTransfer(0, 1, 0, 1, 500), GroupTransfer(1, 0, 1, 0, 400)
    >>> onward = GroupTransfer(2, 2, 0, 2, 100)
    >>> [[one.group for one in mini] for mini in mini_migrations([there, back, onward], most_groups=2)]
    [[0, 1], [2]]
    """
    if most_groups < 1:
        raise PlanningError(f"most_groups={most_groups}: a mini-migration moves at least 1 group")
    given = sorted(transfers, key=lambda one: (-one.nbytes, one.group))
    for group, count in Counter(one.group for one in given).items():
        if count > 1:
            raise PlanningError(f"group {group} is to move {count} times: each group moves once")
    inside = deque(one for one in given if one.source == one.target)
    phases = _phases([one for one in given if one.source != one.target])
    minis: list[list[GroupTransfer]] = []
    for phase in phases:
        if minis and len(minis[-1]) + len(phase) <= most_groups:
            minis[-1] += phase
        else:
            minis += [phase[start : start + most_groups] for start in range(0, len(phase), most_groups)]
    for mini in minis:
        mini += [inside.popleft() for _ in range(min(len(inside), most_groups - len(mini)))]
    while inside:
        minis.append([inside.popleft() for _ in range(min(len(inside), most_groups))])
    return minis


def _phases(transfers: list[GroupTransfer]) -> list[list[GroupTransfer]]:
    nodes = sorted({node for one in transfers for node in (one.source, one.target)})
    place = {node: number for number, node in enumerate(nodes)}
    waiting: dict[tuple[int, int], deque[GroupTransfer]] = {}
    left = np.zeros((len(nodes), len(nodes)), np.int64)
    for one in transfers:
        pair = place[one.source], place[one.target]
        waiting.setdefault(pair, deque()).append(one)
        left[pair] += 1
    phases = []
    while left.any():
        pairs = _matching(left)
        phases.append([waiting[pair].popleft() for pair in pairs])
        for pair in pairs:
            left[pair] -= 1
    return phases


def _matching(left: npt.NDArray[np.int64]) -> list[tuple[int, int]]:
    """Return pairs of nodes with groups left, all nodes with the most of them included, each once on either side."""
    sends, receives = left.sum(axis=1), left.sum(axis=0)
    most = max(sends.max(), receives.max())
    critical = (sends == most)[:, None].astype(np.int64) + (receives == most)[None, :]
    # One critical node counts more than any number of other pairs.
    worth = np.where(left > 0, critical * (len(left) + 1) + 1, 0)
    rows, columns = linear_sum_assignment(worth, maximize=True)
    return [(i, j) for i, j in zip(rows.tolist(), columns.tolist(), strict=True) if left[i, j]]
