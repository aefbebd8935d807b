"""Traffic between the key groups of one operator and the nodes, and the placement problem that has it.

Goal
    Planners that collocate groups see how much of a group's traffic stays on a node if an executor there owns it.
Method
    All groups of other operators count where they are now. They are added up by node: for each executor, one group
    without load is pinned there, which has the traffic of the executor's node. So a group has the same traffic with
    each executor of a node, and collocation of the problem rises by what no longer leaves the node.
Not done
    Traffic from sources, which is not sampled by group; moves of the groups of two operators at the same time.

Notes
-----
ALBIC, section 4.3.2. There, a bin is a node that runs all operators. Here, a bin is an executor of one operator.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from scipy.sparse import coo_matrix

from dask_elastic.planning.placement.problem import PlacementProblem
from dask_elastic.planning.turns import no_pause
from dask_elastic.vocab.group_flow import OTHERS, GroupFlow
from dask_elastic.vocab.snapshot import ExecutorSnapshot

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class NodeTraffic:
    """Bytes per second between the groups of an operator and the other groups of each node.

    Parameters
    ----------
    sent, received : array of float, groups × nodes
        What each group sends to other groups there, and what it gets from them.
    homes : array of int
        The node of each executor of the operator.

    Examples
    --------
    >>> traffic = NodeTraffic(np.array([[9.0, 1.0], [0.0, 0.0]]), np.zeros((2, 2)), np.array([0, 1]))
    >>> traffic.within(np.array([1, 1])), traffic.within(np.array([0, 1]))
    (0.1, 0.9)
    """

    sent: Floats
    received: Floats
    homes: Ints

    def within(self, bin: Ints) -> float:
        """Return the share of the traffic that stays on its node with these executors; 1 if there is none."""
        both = self.sent + self.received
        whole = float(both.sum())
        return float(both[np.arange(len(bin)), self.homes[bin]].sum()) / whole if whole > 0 else 1.0

    def added_to(self, problem: PlacementProblem) -> PlacementProblem:
        """Return a problem with this traffic, in which a pinned group of each executor stands for its node.

        Parameters
        ----------
        problem : PlacementProblem
            The groups of the operator, with its executors as bins.
        """
        own, bins = problem.groups, problem.bins
        problem.pause()
        sent = coo_matrix(self.sent[:, self.homes])
        problem.pause()
        received = coo_matrix(self.received[:, self.homes])
        problem.pause()
        row = np.concatenate([sent.row, own + received.col])
        column = np.concatenate([own + sent.col, received.row])
        entries = np.concatenate([sent.data, received.data])
        nothing = np.zeros(bins)
        history = problem.history
        return replace(
            problem,
            load=np.concatenate([problem.load, nothing]),
            current=np.concatenate([problem.current, np.arange(bins)]),
            state_bytes=np.concatenate([problem.state_bytes, nothing]),
            size=np.concatenate([problem.size, np.zeros(bins, np.int64)]),
            pinned=np.concatenate([problem.pinned, np.ones(bins, np.bool_)]),
            operator=np.repeat([0, 1], [own, bins]),
            history=None if history is None else np.hstack([history, np.zeros((len(history), bins))]),
            traffic=coo_matrix((entries, (row, column)), shape=(own + bins, own + bins)),
        )


def node_traffic(
    executors: Sequence[ExecutorSnapshot],
    operator: str,
    owners: Mapping[str, Ints],
    nodes: int,
    pause: Callable[[], None] = no_pause,
) -> NodeTraffic:
    """Return the traffic of the groups of an operator.

    Parameters
    ----------
    executors : sequence of ExecutorSnapshot
        All executors of the job, with what was sampled.
    operator : str
        The operator.
    owners : mapping of str to array of int
        The executor of each group, by operator.
    nodes : int
        The number of nodes.
    pause : callable
        Called about every millisecond of work.

    Examples
    --------
    >>> from dask_elastic.vocab.identity import ExecutorId
    >>> flow = GroupFlow("b", np.array([0, 1]), np.array([1, OTHERS]), np.array([8.0, 2.0]))
    >>> def one(name, index, node, *flows):
    ...     return ExecutorSnapshot(ExecutorId(name, index), node, {node: 1}, 0.0, None, flows=flows)
    >>> placed = [one("a", 0, 1, flow), one("b", 0, 0), one("b", 1, 1)]
    >>> found = node_traffic(placed, "b", {"a": np.array([0, 0]), "b": np.array([0, 1])}, nodes=2)
    >>> found.received.tolist(), found.homes.tolist()
    ([[0.0, 1.0], [0.0, 9.0]], [0, 1])
    """
    homes: dict[str, list[int]] = {}
    for one in executors:
        homes.setdefault(one.executor.component, []).append(one.home)
    at = {name: np.array(homes[name], np.int64)[of] for name, of in owners.items() if name in homes}
    groups = len(owners[operator])
    sent, received = np.zeros((groups, nodes)), np.zeros((groups, nodes))
    for one in executors:
        pause()
        for flow in one.flows:
            # The tables of both operators must be known: what was measured before a restart may be left.
            if flow.operator not in at or one.executor.component not in at:
                continue
            if one.executor.component == operator:
                _add_sent(sent, flow, at[flow.operator], nodes)
            elif flow.operator == operator:
                _add_received(received, flow, at[one.executor.component])
    return NodeTraffic(sent, received, np.array(homes[operator], np.int64))


def _add_sent(sent: Floats, flow: GroupFlow, at: Ints, nodes: int) -> None:
    apart = flow.target != OTHERS
    np.add.at(sent, (flow.source[apart], at[flow.target[apart]]), flow.rate[apart])
    even = np.bincount(at, minlength=nodes) / len(at)
    np.add.at(sent, flow.source[~apart], flow.rate[~apart, None] * even)


def _add_received(received: Floats, flow: GroupFlow, at: Ints) -> None:
    apart = flow.target != OTHERS
    np.add.at(received, (flow.target[apart], at[flow.source[apart]]), flow.rate[apart])
    by_node = np.bincount(at[flow.source[~apart]], flow.rate[~apart], minlength=received.shape[1])
    received += by_node / len(received)
