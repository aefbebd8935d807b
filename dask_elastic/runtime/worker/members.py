"""The nodes of a job, as known to one of them: which have joined, left, or been lost."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from dask_elastic.runtime.protocol.job_spec import VACANT, JobSpec
from dask_elastic.runtime.worker.homes.first_tier import FirstTier


@dataclass(frozen=True)
class MemberChange:
    """A change at one place, that is one index of a job's list of nodes.

    Parameters
    ----------
    node : int
        The place.
    left : bool
        Whether its node has left, which was not known before.
    died : bool
        Whether the process of that node is known to have ended.
    returned : bool
        Whether a node has joined at a place that another had left.
    """

    node: int
    left: bool
    died: bool
    returned: bool


class Members:
    """Membership of one job on one node; no threads, no connections.

    Parameters
    ----------
    spec : JobSpec
        The job, with its first nodes.

    Attributes
    ----------
    spec : JobSpec
        The job, with its current nodes.
    lost : set of str
        Addresses of nodes that this node has given up and the scheduler has not removed yet.
    tier : FirstTier
        Where executors are.
    """

    def __init__(self, spec: JobSpec):
        self.spec = spec
        self.tier = FirstTier(spec)
        self.lost: set[str] = set()
        self._left: set[int] = set()
        self._newest_change = -1

    @property
    def node(self) -> int:
        """The place of this node."""
        return self.spec.node

    def place_of(self, address: str) -> int | None:
        """Return the place of a node; None if it is no member."""
        return self.spec.nodes.index(address) if address in self.spec.nodes else None

    def both_hold_instances(self, node: int) -> bool:
        """Whether this node and another are both home of executors, sources or sinks.

        If either is lost, so are the tuples in flight between them: no third node has a copy.
        """
        return {node, self.node} <= self.tier.settled

    @property
    def left(self) -> frozenset[int]:
        """Places of nodes that have left, or from whose remote tasks executors here have failed over."""
        return frozenset(self._left)

    def lost_settled(self) -> list[str]:
        """Return the nodes that this one has lost although both are home of executors, sources or sinks."""
        settled = self.tier.settled
        if self.node not in settled:
            return []
        addresses = [self.spec.nodes[node] for node in sorted(settled)]
        return [address or "a worker that has left" for address in addresses if address in (VACANT, *self.lost)]

    def lose(self, node: int) -> bool:
        """Give up a node; returns whether to fail over from its remote tasks now, not when the scheduler removes it."""
        self.lost.add(self.spec.nodes[node])
        return node not in self.tier.settled and self._leave(node)

    def update(
        self, change: int, nodes: tuple[str, ...], guests: tuple[int, ...], died: Collection[str] = ()
    ) -> list[MemberChange]:
        """Take the nodes that the scheduler announced; returns the places that have changed.

        Parameters
        ----------
        change : int
            Number of the announcement; one that is older than the newest changes nothing.
        nodes : tuple of str
            Address of each node, `VACANT` for those that have left.
        guests : tuple of int
            Nodes that hold nothing but remote tasks.
        died : collection of str
            Addresses of former nodes whose process has ended.
        """
        if change <= self._newest_change:
            return []
        self._newest_change = change
        before = self.spec.nodes
        self.spec = replace(self.spec, nodes=nodes, guests=guests)
        changes = []
        for node in range(max(len(before), len(nodes))):
            old, new = (listed[node] if node < len(listed) else VACANT for listed in (before, nodes))
            if old != new:
                changes.append(self._change(node, old, new, old in died))
        return changes

    def _change(self, node: int, old: str, new: str, died: bool) -> MemberChange:
        self.lost.discard(old)
        left = old != VACANT and self._leave(node)
        returned = new != VACANT and node in self._left
        if returned:
            self._left.remove(node)
        return MemberChange(node, left, died, returned)

    def _leave(self, node: int) -> bool:
        """Note that a node has left; returns False if this was known."""
        known = node in self._left
        self._left.add(node)
        return not known
