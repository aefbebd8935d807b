"""Links between a home and its remote tasks on one node: they refuse stale and duplicate messages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from dask_elastic.executor.routes import Routes
from dask_elastic.vocab.errors import ProtocolError
from dask_elastic.vocab.lock import Lock
from dask_elastic.vocab.messages import Outputs, Stamp


class Link:
    """One end of the link between an executor's home and its remote tasks on one node.

    Parameters
    ----------
    incarnation : int
        Incarnation of the link; a home that gives the node up begins the next one.

    Attributes
    ----------
    stale, repeated : int
        Messages that were refused: those of an earlier incarnation, and duplicates.

    Notes
    -----
    A channel is a FIFO, but it may deliver a message twice, and a node that was given up may keep sending. Neither must
    change anything. Elasticutor, section 3.1, recovers remote tasks but leaves open how their stale messages are
    refused.

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
        """Messages that were refused."""
        return self.stale + self.repeated

    def stamp(self) -> Stamp:
        """Return the stamp of the next message; messages are sent in the order of their stamps."""
        number = self._sent
        self._sent += 1
        return Stamp(self.incarnation, number)

    def admit(self, stamp: Stamp) -> bool:
        """Whether an arriving message is accepted; called once for each, in the order of arrival.

        Returns
        -------
        bool
            False for a message of an earlier incarnation, and for a duplicate.

        Raises
        ------
        ProtocolError
            If a message before this one is missing: the channel has lost it.
        """
        if stamp.incarnation < self.incarnation:
            self.stale += 1
            return False
        if stamp.incarnation == self.incarnation and stamp.sequence < self._received:
            self.repeated += 1
            return False
        expected = Stamp(self.incarnation, self._received)
        if stamp != expected:
            raise ProtocolError(
                f"a message with {stamp} arrived, but {expected} is next: the channel has lost a message"
            )
        self._received += 1
        return True

    def renew(self) -> None:
        """Begin the next incarnation: messages that the other end sent in this one are refused from now on."""
        self.incarnation += 1
        self._sent = self._received = 0


class Links:
    """The home's ends of an executor's links, one for each node; they also refuse messages of tasks that are lost.

    Parameters
    ----------
    routes : Routes
        The tasks that exist.
    lock : Lock
        The executor's.

    Attributes
    ----------
    late : int
        Messages whose task had ended or was lost when it was their turn; changed under the lock.
    """

    def __init__(self, routes: Routes, lock: Lock):
        self.routes = routes
        self.lock = lock
        self.late = 0
        self._links: dict[int, Link] = {}
        # A node may be given up again before its return is handled.
        self._cut: Counter[int] = Counter()

    def stamp(self, task: int) -> Stamp | None:
        """Return the stamp of the next message to a remote task; None if the task has ended or its node is cut off.

        Messages to one node are sent in the order of their stamps.
        """
        with self.lock:
            target = self.routes.tasks.get(task)
            if target is None or target.node in self._cut:
                return None
            return self._link(target.node).stamp()

    def admit(self, node: int, stamp: Stamp) -> bool:
        """Whether a message of a remote node is accepted; called for each of them, in the order of arrival."""
        with self.lock:
            return self._link(node).admit(stamp)

    def leaves(self, outputs: Outputs) -> bool:
        """Whether outputs of a remote task leave; they count as having left from now on.

        Raises
        ------
        ProtocolError
            If the task has sent these outputs before.
        """
        with self.lock:
            sender = self.routes.tasks.get(outputs.task)
            if sender is None or sender.pending is None:
                self.late += 1
                return False
            if outputs.number <= sender.pending.emitted:
                raise ProtocolError(f"task {outputs.task} sent the outputs of sub-batch {outputs.number} twice")
            sender.pending.emitted = outputs.number
            return True

    def incarnation(self, node: int) -> int:
        """Return the incarnation of the link to a node: how often the node was given up."""
        return self._link(node).incarnation

    def incarnations(self) -> dict[int, int]:
        """Return the incarnation with which another home of the executor begins its link to each node."""
        with self.lock:
            return {node: link.incarnation + 1 for node, link in self._links.items()}

    def resume(self, incarnations: Mapping[int, int]) -> None:
        """Begin links where another home has left them: nodes then refuse what that home has sent."""
        with self.lock:
            self._links = {node: Link(incarnation) for node, incarnation in incarnations.items()}

    def cut(self, node: int) -> None:
        """Stop all exchange with a node; called at the moment it is given up, before `NodeLeft` is handled.

        Messages that were admitted before are still handled: they are in order.
        """
        with self.lock:
            self._link(node).renew()
            self._cut[node] += 1

    def is_cut(self, node: int) -> bool:
        """Whether the link to a node is cut."""
        return node in self._cut

    def restore(self, node: int) -> None:
        """Resume the exchange with a node; called under the lock, once for each `cut`."""
        self._cut[node] -= 1
        if not self._cut[node]:
            del self._cut[node]

    @property
    def stale(self) -> int:
        """Messages of earlier incarnations of a link."""
        return sum(link.stale for link in self._links.values())

    @property
    def repeated(self) -> int:
        """Duplicate messages."""
        return sum(link.repeated for link in self._links.values())

    @property
    def refused(self) -> int:
        """Messages that changed nothing: those of lost tasks and nodes, and duplicates."""
        return self.late + self.stale + self.repeated

    def _link(self, node: int) -> Link:
        # Asked for each message: `setdefault` alone would make many links in vain.
        link = self._links.get(node)
        return self._links.setdefault(node, Link()) if link is None else link
