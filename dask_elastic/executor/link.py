"""The fence between a home and its remote tasks on one node: what is stale or repeated does not get through."""

from __future__ import annotations

from collections import Counter

from dask_elastic.executor.routes import Routes
from dask_elastic.vocab.errors import ProtocolError
from dask_elastic.vocab.lock import Lock
from dask_elastic.vocab.messages import Outputs, Stamp


class Link:
    """One end of the way between an executor's home and its remote tasks on one node.

    Parameters
    ----------
    incarnation : int
        Which life of the link this is; a home that gives the node up begins the next one.

    Attributes
    ----------
    stale, repeated : int
        Messages that were refused: of another life, and those that had come before.

    Notes
    -----
    A channel is a FIFO, but it may bring a message twice, and a node that was given up may go on sending. Neither must
    change anything (Elasticutor, section 3.1, recovers remote tasks; how their old selves are kept out it leaves open).

    Examples
    --------
    >>> home, remote = Link(), Link()
    >>> stamp = remote.stamp()
    >>> home.admit(stamp), home.admit(stamp)
    (True, False)
    >>> home.renew()
    >>> home.admit(remote.stamp()), home.stale, home.repeated
    (False, 1, 1)
    """

    __slots__ = ("_received", "_sent", "incarnation", "repeated", "stale")

    def __init__(self, incarnation: int = 0):
        self.incarnation = incarnation
        self.stale = 0
        self.repeated = 0
        self._sent = 0
        self._received = 0

    @property
    def refused(self) -> int:
        """How many messages were refused."""
        return self.stale + self.repeated

    def stamp(self) -> Stamp:
        """Return the stamp of the next message; messages are sent in the order of their stamps."""
        number = self._sent
        self._sent += 1
        return Stamp(self.incarnation, number)

    def admit(self, stamp: Stamp) -> bool:
        """Say whether a message that came may pass; called once for each, in the order in which they come.

        Raises
        ------
        ProtocolError
            If a message before this one is missing: a channel that drops messages is no channel.
        """
        if stamp.incarnation < self.incarnation:
            self.stale += 1
            return False
        if stamp.incarnation == self.incarnation and stamp.sequence < self._received:
            self.repeated += 1
            return False
        if stamp != (self.incarnation, self._received):
            raise ProtocolError(f"a message with {stamp} came where {Stamp(self.incarnation, self._received)} was due")
        self._received += 1
        return True

    def renew(self) -> None:
        """Begin the next life of the link: whatever the other end sent in this one is refused from here on."""
        self.incarnation += 1
        self._sent = self._received = 0


class Links:
    """The home's ends of an executor's links, one for each node, and what else is known of messages that are too late.

    Parameters
    ----------
    routes : Routes
        The tasks that are alive.
    lock : Lock
        The executor's.

    Attributes
    ----------
    late : int
        Messages of tasks that were over, or lost, when it was their turn; changed by who holds the lock.
    """

    def __init__(self, routes: Routes, lock: Lock):
        self.routes = routes
        self.lock = lock
        self.late = 0
        self._links: dict[int, Link] = {}
        # A node may be given up once more before it is known that it was back.
        self._cut: Counter[int] = Counter()

    def stamp(self, task: int) -> Stamp | None:
        """Return the stamp of the next message to a remote task; None if nothing is to be sent to it.

        That is so when the task is lost or over, and when its node was cut off. Messages to one node are sent in the
        order of their stamps.
        """
        with self.lock:
            mine = self.routes.tasks.get(task)
            if mine is None or mine.node in self._cut:
                return None
            return self._link(mine.node).stamp()

    def admit(self, node: int, stamp: Stamp) -> bool:
        """Say whether a message of a remote node may pass; called for each of them, in the order in which they come."""
        with self.lock:
            return self._link(node).admit(stamp)

    def leaves(self, outputs: Outputs) -> bool:
        """Say whether outputs of a remote task are to leave; they count as having left from here on."""
        with self.lock:
            mine = self.routes.tasks.get(outputs.task)
            if mine is None or mine.pending is None:
                self.late += 1
                return False
            if outputs.number <= mine.pending.emitted:
                raise ProtocolError(f"task {outputs.task} sent outputs {outputs.number} twice")
            mine.pending.emitted = outputs.number
            return True

    def incarnation(self, node: int) -> int:
        """Return which life of the link to a node this is: how often the node was given up."""
        return self._link(node).incarnation

    def cut(self, node: int) -> None:
        """Exchange nothing with a node any more; called the moment that it is given up, before `NodeGone` is handled.

        What was admitted before is still taken: it is in order.
        """
        with self.lock:
            self._link(node).renew()
            self._cut[node] += 1

    def is_cut(self, node: int) -> bool:
        """Whether nothing is exchanged with a node."""
        return node in self._cut

    def mend(self, node: int) -> None:
        """Begin to exchange messages with a node again; called by who holds the lock, once for each `cut`."""
        self._cut[node] -= 1
        if not self._cut[node]:
            del self._cut[node]

    @property
    def stale(self) -> int:
        """Messages of lives of a link that are over."""
        return sum(link.stale for link in self._links.values())

    @property
    def repeated(self) -> int:
        """Messages that had come before."""
        return sum(link.repeated for link in self._links.values())

    @property
    def refused(self) -> int:
        """Messages that changed nothing: of tasks and nodes that were lost before, and those that came twice."""
        return self.late + self.stale + self.repeated

    def _link(self, node: int) -> Link:
        return self._links.setdefault(node, Link())
