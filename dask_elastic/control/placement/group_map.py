"""Where the key groups of a job are, and what they exchange with those of other operators, for people to read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dask_elastic.control.placement.recent_flows import Flows, RecentFlows
from dask_elastic.vocab.group_flow import OTHERS
from dask_elastic.vocab.snapshot import ExecutorSnapshot, JobSnapshot

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class OperatorGroups:
    """The key groups of one operator.

    Parameters
    ----------
    executors : tuple of ExecutorSnapshot
        The executors of the operator.
    owner : int array, shape (groups,)
        The executor of each group, as an index into `executors`.

    Attributes
    ----------
    node : int array, shape (groups,)
        The node of each group.
    load : float array, shape (groups,)
        Busy cores that arriving rows of each group require; zeros as long as nothing is measured.
    nbytes : float array, shape (groups,)
        Bytes of the state of each group.
    """

    executors: tuple[ExecutorSnapshot, ...]
    owner: Ints

    @cached_property
    def node(self) -> Ints:
        """The node of each group."""
        return np.array([one.home for one in self.executors], np.int64)[self.owner]

    @cached_property
    def load(self) -> Floats:
        """The busy cores of each group; part of what has arrived for it was perhaps measured at its former owner."""
        return self._sum(one.shard_load for one in self.executors)

    @cached_property
    def nbytes(self) -> Floats:
        """The bytes of state of each group."""
        return self._sum(one.shard_bytes for one in self.executors)

    def executor(self, group: int) -> ExecutorSnapshot:
        """Return the executor that owns a group."""
        return self.executors[int(self.owner[group])]

    def _sum(self, measured: Iterable[Floats | None]) -> Floats:
        total = np.zeros(len(self.owner))
        for one in measured:
            if one is not None and len(one) == len(total):
                total += one
        return total


class GroupPair(NamedTuple):
    """What one key group sends to a group of another operator.

    Parameters
    ----------
    sender, receiver : str
        The operators.
    source, target : int
        The group that sends and the one that receives.
    rate : float
        Bytes per second.
    within : bool
        Whether both are on the same worker.
    """

    sender: str
    source: int
    receiver: str
    target: int
    rate: float
    within: bool


@dataclass(frozen=True, eq=False)
class OperatorTraffic:
    """What the groups of one operator send to those of another one.

    Parameters
    ----------
    sender, receiver : str
        The operators.
    source, target : int array, shape (pairs,)
        The group that sends, and the one that receives; `OTHERS` for all groups of which there is no pair.
    rate : float array, shape (pairs,)
        Bytes per second.
    within : float array, shape (pairs,)
        The part of it that stays on a worker. What goes to all other groups goes evenly to all nodes by their groups.
    """

    sender: str
    receiver: str
    source: Ints
    target: Ints
    rate: Floats
    within: Floats

    @cached_property
    def total(self) -> float:
        """Bytes per second."""
        return float(self.rate.sum())

    @cached_property
    def share_within(self) -> float:
        """The share of it that stays on a worker; 1 if there is none."""
        return float(self.within.sum()) / self.total if self.total > 0 else 1.0

    def heaviest(self, most: int) -> list[GroupPair]:
        """Return the pairs with the most traffic, heaviest first."""
        named = np.flatnonzero(self.target != OTHERS)
        first = named[np.argsort(-self.rate[named], kind="stable")[:most]]
        return [
            GroupPair(
                self.sender,
                int(self.source[at]),
                self.receiver,
                int(self.target[at]),
                float(self.rate[at]),
                bool(self.within[at] > 0),
            )
            for at in first
        ]


class GroupMap:
    """The key groups of all operators of a job, and their traffic.

    Parameters
    ----------
    operators : mapping of str to OperatorGroups
        The groups of each operator.
    nodes : int
        The number of nodes.
    flows : mapping of str to tuple of GroupFlow
        Sampled traffic by the operator that sends it.

    Attributes
    ----------
    traffic : tuple of OperatorTraffic
        What was sampled, for each pair of operators.

    Notes
    -----
    Traffic counts as for the planners that collocate groups, see `dask_elastic.control.placement.group_traffic`.

    Examples
    --------
    >>> from dask_elastic.vocab.group_flow import GroupFlow
    >>> from dask_elastic.vocab.identity import ExecutorId
    >>> flow = GroupFlow("b", np.array([0, 1]), np.array([1, OTHERS]), np.array([9.0, 1.0]))
    >>> def one(name, index, node, groups, *flows):
    ...     known = {"groups": np.array(groups), "flows": flows}
    ...     return ExecutorSnapshot(ExecutorId(name, index), node, {node: 1}, 0.0, None, **known)
    >>> job = JobSnapshot("j", 1, (one("a", 0, 1, [0, 1], flow), one("b", 0, 0, [0]), one("b", 1, 1, [1])))
    >>> found = GroupMap.of(job)
    >>> found.traffic[0].total, found.share_within, found.traffic[0].heaviest(1)[0].target
    (10.0, 0.95, 1)
    >>> found.by_node("b", 1).tolist(), [pair.source for pair in found.pairs("b", 1)]
    ([0.0, 9.5], [0])
    """

    def __init__(self, operators: Mapping[str, OperatorGroups], nodes: int, flows: Flows):
        self.operators = operators
        self.nodes = nodes
        self.traffic = tuple(_traffic(operators, nodes, flows))
        self._exchanged: dict[str, tuple[Floats, Floats]] = {}

    @classmethod
    def of(cls, job: JobSnapshot, flows: Flows | None = None) -> GroupMap:
        """Return the groups of a job; there are none if they do not move, or not all of them are known.

        Parameters
        ----------
        job : JobSnapshot
            The job.
        flows : mapping of str to tuple of GroupFlow, optional
            Sampled traffic by the operator that sends it; what the snapshot has if not given.
        """
        if flows is None:
            recent = RecentFlows()
            recent.add(0.0, job)
            flows = recent.of(0.0)
        by_operator: dict[str, list[ExecutorSnapshot]] = {}
        for one in job.executors:
            by_operator.setdefault(one.executor.component, []).append(one)
        found = {name: _operator(executors) for name, executors in by_operator.items()}
        nodes = 1 + max((one.home for one in job.executors), default=-1)
        return cls({name: groups for name, groups in found.items() if groups is not None}, nodes, flows)

    @property
    def total(self) -> float:
        """Bytes per second between all groups."""
        return sum(one.total for one in self.traffic)

    @property
    def share_within(self) -> float:
        """The share of the traffic that stays on a worker; 1 if there is none."""
        inside = sum(float(one.within.sum()) for one in self.traffic)
        return inside / self.total if self.total > 0 else 1.0

    def heaviest(self, most: int) -> list[GroupPair]:
        """Return the pairs of groups with the most traffic, heaviest first."""
        found = [pair for one in self.traffic for pair in one.heaviest(most)]
        return sorted(found, key=lambda pair: -pair.rate)[:most]

    def pairs(self, operator: str, group: int) -> list[GroupPair]:
        """Return the pairs of which a group is one, heaviest first; not what it exchanges with all others."""
        found = [pair for one in self.traffic for pair in _with(one, operator, group)]
        return sorted(found, key=lambda pair: -pair.rate)

    def by_node(self, operator: str, group: int) -> Floats:
        """Return the bytes per second that a group exchanges with the groups of each node.

        Parameters
        ----------
        operator : str
            Its operator.
        group : int
            The group.
        """
        found = np.zeros(self.nodes)
        for one in self.traffic:
            apart = one.target != OTHERS
            if one.sender == operator:
                mine, other = one.source == group, self.operators[one.receiver].node
                named = mine & apart
                found += np.bincount(other[one.target[named]], one.rate[named], self.nodes)
                found += float(one.rate[mine & ~apart].sum()) * _shares(other, self.nodes)
            elif one.receiver == operator:
                named, other = one.target == group, self.operators[one.sender].node
                found += np.bincount(other[one.source[named]], one.rate[named], self.nodes)
                found += self._spread(one) / len(self.operators[operator].owner)
        return found

    def exchanged(self, operator: str) -> tuple[Floats, Floats]:
        """Return the bytes per second that each group of an operator exchanges, and the part within its worker."""
        if operator not in self._exchanged:
            self._exchanged[operator] = self._exchange(operator)
        return self._exchanged[operator]

    def _exchange(self, operator: str) -> tuple[Floats, Floats]:
        groups = self.operators[operator]
        count = len(groups.owner)
        total, within = np.zeros(count), np.zeros(count)
        for one in self.traffic:
            if one.sender == operator:
                total += np.bincount(one.source, one.rate, count)
                within += np.bincount(one.source, one.within, count)
            elif one.receiver == operator:
                named = one.target != OTHERS
                spread = self._spread(one) / count
                total += np.bincount(one.target[named], one.rate[named], count) + spread.sum()
                within += np.bincount(one.target[named], one.within[named], count) + spread[groups.node]
        return total, within

    def _spread(self, one: OperatorTraffic) -> Floats:
        """Return, by the node that sends it, what all groups of the receiver get in equal parts."""
        evenly = one.target == OTHERS
        node = self.operators[one.sender].node
        return np.bincount(node[one.source[evenly]], one.rate[evenly], self.nodes).astype(np.float64)


def _operator(executors: Sequence[ExecutorSnapshot]) -> OperatorGroups | None:
    """Return the groups of an operator; None if they do not move, or some have no executor here."""
    owned = [one.groups for one in executors]
    known = [groups for groups in owned if groups is not None]
    if len(known) < len(owned):
        return None
    every = np.concatenate(known)
    if not (np.sort(every) == np.arange(len(every))).all():
        return None
    owner = np.empty(len(every), np.int64)
    owner[every] = np.repeat(np.arange(len(known)), [len(groups) for groups in known])
    return OperatorGroups(tuple(executors), owner)


def _traffic(operators: Mapping[str, OperatorGroups], nodes: int, flows: Flows) -> Iterable[OperatorTraffic]:
    """Yield the traffic of each pair of operators whose groups are known."""
    for sender, groups in operators.items():
        sent = flows.get(sender, ())
        for receiver in dict.fromkeys(flow.operator for flow in sent):
            if receiver not in operators:
                continue
            mine = [flow for flow in sent if flow.operator == receiver]
            source = np.concatenate([one.source for one in mine])
            target = np.concatenate([one.target for one in mine])
            rate = np.concatenate([one.rate for one in mine])
            here, there = groups.node, operators[receiver].node
            apart = target != OTHERS
            stays = np.where(
                apart, here[source] == there[np.where(apart, target, 0)], _shares(there, nodes)[here[source]]
            )
            yield OperatorTraffic(sender, receiver, source, target, rate, rate * stays)


def _shares(node: Ints, nodes: int) -> Floats:
    """Return the share of the groups that is on each node."""
    counts: Floats = np.bincount(node, minlength=nodes) / len(node)
    return counts


def _with(traffic: OperatorTraffic, operator: str, group: int) -> list[GroupPair]:
    if operator not in (traffic.sender, traffic.receiver):
        return []
    mine = (traffic.source if operator == traffic.sender else traffic.target) == group
    at = np.flatnonzero(mine & (traffic.target != OTHERS))
    columns = traffic.source[at], traffic.target[at], traffic.rate[at], traffic.within[at]
    return OperatorTraffic(traffic.sender, traffic.receiver, *columns).heaviest(len(at))
