"""The nodes of a virtual cluster as far as messages cost something: their links, and the time they take for messages.

A node sends all of its messages over one link, in order, and receives all over another one, however many nodes the
others are. Rows and state share them. What a node does for a message of a protocol, it does for one at a time.
"""

from __future__ import annotations

from dataclasses import dataclass

HOP = 1e-3
"""Seconds from one node to another, without the time that a link is busy."""


@dataclass(frozen=True)
class Costs:
    """What messages and state cost.

    Parameters
    ----------
    bandwidth : float or None
        Bytes per second of a link, in each direction; without a limit if None.
    row_bytes : int
        Bytes of a row on a link.
    shard_bytes : int
        Bytes of the state of a shard or key group.
    mark : float
        Seconds of a node for an end mark or a fence, to send it, and to handle it.
    call : float
        Seconds of the caller, and of the called node, for a call or its answer.
    step : float
        Seconds of a node for each executor that takes part in what it is asked for.
    state : float
        Seconds of a node per byte of state that it gives or gets.
    """

    bandwidth: float | None = None
    row_bytes: int = 0
    shard_bytes: int = 0
    mark: float = 0.0
    call: float = 0.0
    step: float = 0.0
    state: float = 0.0


class Network:
    """Links and message handling of some nodes, and of the coordinator.

    Parameters
    ----------
    nodes : int
        The number of nodes; the coordinator has the next number.
    costs : Costs
        What messages cost.

    Attributes
    ----------
    state_bytes : int
        Bytes of state that have left their node.
    """

    def __init__(self, nodes: int, costs: Costs):
        self.costs = costs
        self.coordinator = nodes
        self.state_bytes = 0
        self._up = [0.0] * (nodes + 1)
        self._down = [0.0] * (nodes + 1)
        self._busy = [0.0] * (nodes + 1)

    def arrival(self, now: float, source: int, target: int, nbytes: int = 0) -> float:
        """Return when a message arrives that leaves now: behind those before it on both links."""
        if source == target:
            return now
        bandwidth = self.costs.bandwidth
        if bandwidth is None:
            return now + HOP
        seconds = nbytes / bandwidth
        began = max(now, self._up[source])
        self._up[source] = began + seconds
        self._down[target] = max(began, self._down[target]) + seconds
        return self._down[target] + HOP

    def handled(self, now: float, node: int, seconds: float) -> float:
        """Return when a node has handled a message that is there now, behind those before it."""
        if not seconds:
            return now
        self._busy[node] = max(now, self._busy[node]) + seconds
        return self._busy[node]

    def state_arrival(self, now: float, source: int, target: int, nbytes: int) -> float:
        """Return when state that leaves now has arrived."""
        self.state_bytes += nbytes if source != target else 0
        return self.arrival(now, source, target, nbytes)
