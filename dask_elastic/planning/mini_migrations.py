"""Splitting a migration into mini-migrations, each of which fills the uplinks and downlinks of the nodes."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.optimize import linear_sum_assignment

from dask_elastic.planning.turns import no_pause
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


def mini_migrations(
    transfers: Iterable[GroupTransfer],
    most_groups: int,
    most_bytes: float = math.inf,
    pause: Callable[[], None] = no_pause,
) -> list[list[GroupTransfer]]:
    """Split a migration into a sequence of mini-migrations.

    Parameters
    ----------
    transfers : iterable of GroupTransfer
        The groups that move; each once.
    most_groups : int
        The most groups that a node sends, and the most that it receives, in one mini-migration.
    most_bytes : float
        The most bytes of state that a node sends, and the most that it receives, in one mini-migration; a larger group
        moves nevertheless.
    pause : callable
        Called about every millisecond of work.

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
    similar size. A mini-migration consists of consecutive phases. Its limits are those of a node: a group waits for
    those that leave or come at the same nodes, not for others, so that what moves at once may grow with the number of
    nodes. Transfers within a node use no link; each mini-migration has up to `most_groups` of each node.

    Examples
    --------
    >>> there, back = GroupTransfer(0, 1, 0, 1, 500), GroupTransfer(1, 0, 1, 0, 400)
    >>> onward = GroupTransfer(2, 2, 0, 2, 100)
    >>> [[one.group for one in mini] for mini in mini_migrations([there, back, onward], most_groups=1)]
    [[0, 1], [2]]
    >>> len(mini_migrations([there, back, onward], most_groups=2))
    1
    """
    if most_groups < 1:
        raise PlanningError(f"most_groups={most_groups}: a node sends at least 1 group in a mini-migration")
    given = sorted(transfers, key=lambda one: (-one.nbytes, one.group))
    for group, count in Counter(one.group for one in given).items():
        if count > 1:
            raise PlanningError(f"group {group} is to move {count} times: each group moves once")
    across = [one for one in given if one.source != one.target]
    minis = _joined(_phases(across, pause), most_groups, most_bytes, pause)
    inside: dict[int, list[GroupTransfer]] = {}
    for one in given:
        if one.source == one.target:
            inside.setdefault(one.source, []).append(one)
    for listed in inside.values():
        for number, start in enumerate(range(0, len(listed), most_groups)):
            if number == len(minis):
                minis.append([])
            minis[number] += listed[start : start + most_groups]
    return minis


def _joined(
    phases: list[list[GroupTransfer]], most_groups: int, most_bytes: float, pause: Callable[[], None]
) -> list[list[GroupTransfer]]:
    """Join consecutive phases within the limits of a node."""
    minis: list[list[GroupTransfer]] = []
    links: Counter[tuple[str, int]] = Counter()
    joined = 0
    for phase in phases:
        pause()
        added = Counter(
            {
                **{("sends", one.source): one.nbytes for one in phase},
                **{("gets", one.target): one.nbytes for one in phase},
            }
        )
        fits = joined < most_groups and all(links[link] + nbytes <= most_bytes for link, nbytes in added.items())
        if minis and fits:
            minis[-1] += phase
            links, joined = links + added, joined + 1
        else:
            minis.append([*phase])
            links, joined = added, 1
    return minis


def _phases(transfers: list[GroupTransfer], pause: Callable[[], None]) -> list[list[GroupTransfer]]:
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
        pause()
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
