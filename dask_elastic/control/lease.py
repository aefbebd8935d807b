"""The coordinator's lease on the parts of a job: how long each may emit, and when others may take their place."""

from __future__ import annotations

import math

CLOCK_ERROR = 0.01
"""The share by which the clock of a node may be slower than that of the coordinator."""


class Lease:
    """Until when a part of a job may emit, by the clock of its node.

    The lease begins when it was requested, not when the answer arrived: the coordinator counts from its answer, so the
    lease ends here first. Nothing but an answer of the coordinator renews it.

    Examples
    --------
    >>> lease = Lease()
    >>> lease.holds(0.0)
    False
    >>> lease.renew(requested=1.0, seconds=4.0)
    >>> lease.holds(4.9), lease.holds(5.0)
    (True, False)
    """

    __slots__ = ("_ended", "_until")

    def __init__(self) -> None:
        self._until = -math.inf
        self._ended = False

    def renew(self, requested: float, seconds: float) -> None:
        """Take an answer of the coordinator.

        Parameters
        ----------
        requested : float
            When it was requested, by the clock of this node.
        seconds : float
            The length of the lease; 0 if it is refused.
        """
        if seconds > 0.0:
            self._until = max(self._until, requested + seconds)

    def holds(self, now: float) -> bool:
        """Return whether the part may emit.

        Parameters
        ----------
        now : float
            The time, by the clock of this node, which must count while the process is suspended.
        """
        return not self._ended and now < self._until

    def end(self) -> None:
        """End the lease: the part ends, and the coordinator does not wait for it."""
        self._ended = True


class GrantedLeases:
    """The leases that the coordinator has granted on the parts of one generation of a job.

    The next generation may start when none is held: each part has ended, its process has died, or its lease is over.

    Examples
    --------
    >>> leases = GrantedLeases()
    >>> leases.grant(0, now=1.0, seconds=4.0), leases.grant(1, now=2.0, seconds=4.0)
    (4.0, 4.0)
    >>> leases.close()
    >>> leases.grant(0, now=3.0, seconds=4.0)
    0.0
    >>> sorted(leases.held(now=5.0)), sorted(leases.held(now=5.5))
    ([0, 1], [1])
    >>> leases.end(1)
    >>> leases.held(now=5.5)
    {}
    """

    def __init__(self) -> None:
        self._until: dict[int, float] = {}
        self._closed = False

    def grant(self, node: int, now: float, seconds: float) -> float:
        """Grant or renew the lease of a node.

        Parameters
        ----------
        node : int
            The node.
        now : float
            The time, by the clock of the coordinator.
        seconds : float
            The length of the lease.

        Returns
        -------
        float
            The length; 0 after `close`.
        """
        if self._closed:
            return 0.0
        self._until[node] = now + (1 + CLOCK_ERROR) * seconds
        return seconds

    def close(self) -> None:
        """Grant nothing any more: the generation ends."""
        self._closed = True

    def end(self, node: int) -> None:
        """Note that the part of a node has ended, or that its process has died."""
        self._until.pop(node, None)

    def held(self, now: float) -> dict[int, float]:
        """Return the nodes that may still emit, and for how many seconds.

        Parameters
        ----------
        now : float
            The time, by the clock of the coordinator.
        """
        return {node: until - now for node, until in self._until.items() if until > now}
