"""Delivery of batches, credit, control records and messages from and to the instances of a job on this node."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from dask_elastic.executor import events
from dask_elastic.executor.homes.arrival import Arrival
from dask_elastic.routing.mark_due import MarkDue
from dask_elastic.runtime.protocol.home_calls import CreditInUse
from dask_elastic.runtime.protocol.job_spec import JobSpec
from dask_elastic.runtime.transport.credit import CreditGate
from dask_elastic.runtime.transport.credit_waits import CreditWaits
from dask_elastic.runtime.transport.deferred import DEFERRED
from dask_elastic.runtime.transport.fence import Fence
from dask_elastic.runtime.transport.lease_gate import LeaseGate
from dask_elastic.runtime.transport.peer import Peer
from dask_elastic.runtime.worker.idle_watch import IdleWatch
from dask_elastic.runtime.worker.members import Members
from dask_elastic.runtime.worker.turns import TURNS
from dask_elastic.topology.component import Component
from dask_elastic.vocab.barrier import Barrier
from dask_elastic.vocab.batch import Batch, Delivery
from dask_elastic.vocab.errors import ProtocolError
from dask_elastic.vocab.identity import ExecutorId
from dask_elastic.vocab.messages import ToHome, ToRemote
from dask_elastic.vocab.watermark import Watermark


class Instance(Protocol):
    """An executor at home here, or a sink here: it receives what upstream instances send."""

    def offer(self, origin: ExecutorId, batch: Batch, nbytes: int) -> None:
        """Take a batch."""
        ...

    def receive_watermark(self, watermark: Watermark, version: int, /) -> None:
        """Take a watermark, behind the batches that its origin sent before; `version` is that of the first tier."""
        ...

    def receive_barrier(self, barrier: Barrier) -> None:
        """Take a barrier, behind the batches that its origin sent before."""
        ...

    def input_ended(self, origin: ExecutorId, version: int, /) -> None:
        """Take the end of an upstream instance, behind its last batch; `version` is that of the first tier."""
        ...


class HomeInstance(Instance, Protocol):
    """An executor at home here."""

    def receive_end_mark(self, mark: events.EndMark) -> None:
        """Take the end mark of an upstream instance, behind what it sends to this home."""
        ...


class SinkInstance(Instance, Protocol):
    """A sink here."""

    def offer(self, origin: ExecutorId, batch: Batch, nbytes: int, may_wait: bool = True) -> None:
        """Take a batch; a caller that `may_wait` may write it itself."""
        ...


class Exchange:
    """Delivers between the instances of one job, from and to this node; see `GroupExchange` for key groups that move.

    Parameters
    ----------
    members : Members
        The job's nodes.
    components : mapping of str to Component
        The topology's components.
    homes, sinks : mapping of ExecutorId to HomeInstance, or to SinkInstance
        The receivers on this node; filled by the job's part.
    peer : callable
        ``peer(address)`` returns the connection to another node; raises `NodeLost` if there is none.
    is_tight : callable
        Whether memory is short: credit of executors is then held back.
    idle_watch : IdleWatch
        Notes rows from sources here and from other nodes.
    lease : LeaseGate
        Without the coordinator's lease, no batch leaves an instance.

    Attributes
    ----------
    tier : FirstTier
        Where the receivers are.
    arrivals : dict of ExecutorId to Arrival
        What is held for executors whose home this node becomes.
    """

    def __init__(
        self,
        members: Members,
        components: Mapping[str, Component],
        homes: Mapping[ExecutorId, HomeInstance],
        sinks: Mapping[ExecutorId, SinkInstance],
        peer: Callable[[str], Peer],
        is_tight: Callable[[], bool],
        idle_watch: IdleWatch,
        lease: LeaseGate,
    ):
        self.members = members
        self.tier = members.tier
        self.arrivals: dict[ExecutorId, Arrival[Callable[[HomeInstance], None]]] = {}
        self._components = components
        self._homes = homes
        self._sinks = sinks
        self._peer = peer
        self._is_tight = is_tight
        self.idle_watch = idle_watch
        self._lease = lease
        self._withheld: deque[tuple[ExecutorId, ExecutorId, int, bool, bool]] = deque()
        # By origin and target.
        self._gates: dict[ExecutorId, dict[ExecutorId, CreditGate]] = {}
        self._waits: dict[ExecutorId, CreditWaits] = {}
        self._aborted = False
        self._lock = threading.Lock()

    @property
    def _spec(self) -> JobSpec:
        return self.members.spec

    # batches and credit

    def deliver(self, origin: ExecutorId, outputs: Iterable[Delivery]) -> int:
        """Hand batches to the next receivers; blocks while their windows are full. Returns the bytes delivered.

        Raises
        ------
        Aborted
            If the job ends meanwhile.
        NodeLost
            If there is no connection to a receiver's node.
        """
        total = 0
        for target, batch in outputs:
            nbytes = batch.nbytes
            total += nbytes
            self._gate(origin, target).acquire(nbytes)
            # After the credit, for which it may have waited long.
            self._lease.wait()
            self._hand_over(target, origin, batch, nbytes)
        return total

    def deliver_now(self, origin: ExecutorId, outputs: Sequence[Delivery]) -> tuple[int, Sequence[Delivery]]:
        """Hand batches to the next receivers until one lacks credit; returns the bytes delivered, and the others.

        Without the lease nothing is delivered, as without credit: the caller need not wait.

        Raises
        ------
        Aborted
            If the job has ended.
        NodeLost
            If there is no connection to a receiver's node.
        """
        total, leased = 0, not self._lease.needed
        # Other nodes get their batches together, and before this thread runs idle tasks here.
        with DEFERRED:
            for position, (target, batch) in enumerate(outputs):
                nbytes = batch.nbytes
                if not ((leased or self._lease.is_open) and self._gate(origin, target).try_acquire(nbytes)):
                    return total, outputs[position:]
                total += nbytes
                self._hand_over(target, origin, batch, nbytes)
        return total, ()

    def _hand_over(self, target: ExecutorId, origin: ExecutorId, batch: Batch, nbytes: int) -> None:
        sends = self.tier.sends(origin, target.component)
        if sends is None:
            self._bring(target.index, target, origin, batch, nbytes)
            return
        table = sends.begin()
        self._bring(table.homes[target.index], target, origin, batch, nbytes)
        for mark in sends.end(table):
            self.send_mark(origin, target.component, mark)

    def _bring(self, node: int, target: ExecutorId, origin: ExecutorId, batch: Batch, nbytes: int) -> None:
        spec = self.members.spec
        if node == spec.node:
            self._offer(target, origin, batch, nbytes)
        else:
            self._peer(spec.nodes[node]).send_batch(spec.generation_id, target, origin, batch, nbytes)

    def accept(self, target: ExecutorId, origin: ExecutorId, batch: Batch, nbytes: int) -> None:
        """Take a batch of another node; the caller must not wait, since it also reads returned credit."""
        self.idle_watch.note()
        with TURNS.without_waiting():
            self._offer(target, origin, batch, nbytes)

    def _offer(self, target: ExecutorId, origin: ExecutorId, batch: Batch, nbytes: int) -> None:
        arrival = self.arrivals.get(target)
        if arrival is not None and not arrival.admit(lambda home: home.offer(origin, batch, nbytes)):
            return
        home = self._homes.get(target)
        if home is not None:
            home.offer(origin, batch, nbytes)
            return
        may_wait = TURNS.may_wait
        if may_wait:
            DEFERRED.write_now()
        self._sink(target).offer(origin, batch, nbytes, may_wait)

    def _sink(self, target: ExecutorId) -> SinkInstance:
        sink = self._sinks.get(target)
        if sink is None:
            raise ProtocolError(f"{target} is not on node {self._spec.node}, but rows for it have arrived there")
        return sink

    def _take(self, target: ExecutorId, act: Callable[[Instance], None]) -> None:
        """Let an instance here take a control record, behind what is held for it."""
        arrival = self.arrivals.get(target)
        if arrival is None or arrival.admit(act):
            act(self._homes.get(target) or self._sink(target))

    def release(
        self, origin: ExecutorId, target: ExecutorId, nbytes: int, wanted_more: bool = False, is_part: bool = False
    ) -> None:
        """Return credit to an upstream instance; while memory is short, that of executors is held back.

        Parameters
        ----------
        origin, target : ExecutorId
            The sender and the receiver.
        nbytes : int
            The credit of one batch, or of some of its rows.
        wanted_more : bool
            Whether the receiver would have processed more rows at once, had they waited; see `FlowWindow`.
        is_part : bool
            Whether more credit of the batch follows.
        """
        if target in self._homes and self._is_tight():
            self._withheld.append((origin, target, nbytes, False, is_part))
            return
        node = self.tier.emitter(origin)
        if node == self.members.spec.node:
            self.take_credit(origin, target, nbytes, wanted_more, is_part)
        else:
            self._send_credit(node, origin, target, nbytes, wanted_more, is_part)

    def take_credit(
        self, origin: ExecutorId, target: ExecutorId, nbytes: int, wanted_more: bool, is_part: bool = False
    ) -> None:
        """Take returned credit of an instance here; that of an executor that has left follows it to its next home."""
        if self._gate(origin, target).release(nbytes, wanted_more, is_part):
            return
        node = self.tier.node_of(origin)
        if node == self._spec.node:
            # It has come back meanwhile, with other gates.
            self._gate(origin, target).release(nbytes, wanted_more, is_part)
        else:
            self._send_credit(node, origin, target, nbytes, wanted_more, is_part)

    def _send_credit(
        self, node: int, origin: ExecutorId, target: ExecutorId, nbytes: int, wanted_more: bool, is_part: bool
    ) -> None:
        spec = self._spec
        self._peer(spec.nodes[node]).send_credit(spec.generation_id, target, origin, nbytes, wanted_more, is_part)

    def release_withheld(self) -> None:
        """Return the credit that was held back while memory was short."""
        while self._withheld:
            self.release(*self._withheld.popleft())

    def join_bytes(self, origin: ExecutorId) -> int | None:
        """Return the bytes of outputs for which an instance joins waiting batches; None before its first output.

        Joined batches fill a part of the window of the component with the smallest one; other components get as much.
        """
        windows: dict[str, int] = {}
        for target, gate in list(self._gates.get(origin, {}).items()):
            windows[target.component] = windows.get(target.component, 0) + gate.join_bytes
        return min(windows.values()) * len(windows) if windows else None

    def _gate(self, origin: ExecutorId, target: ExecutorId) -> CreditGate:
        gate = self._gates.get(origin, {}).get(target)
        if gate is None:
            options = self._spec.options
            with self._lock:
                gate = CreditGate(options.channel_window, options.queue_time, self._waits_of(origin))
                gate = self._gates.setdefault(origin, {}).setdefault(target, gate)
                if self._aborted:
                    gate.abort()
        return gate

    def _waits_of(self, origin: ExecutorId) -> CreditWaits:
        return self._waits.setdefault(origin, CreditWaits())

    def backpressured(self, origin: ExecutorId) -> float:
        """Return the recent share of time in which an instance here waited for credit, from 0 to 1.

        Called for each report of the worker.
        """
        return self._waits_of(origin).share()

    def abort(self) -> None:
        """Let no batch pass any more: senders that wait for credit raise `Aborted`."""
        with self._lock:
            self._aborted = True
            gates = [gate for targets in self._gates.values() for gate in targets.values()]
        for gate in gates:
            gate.abort()

    # credit of executors that change their home

    def expect(self, origin: ExecutorId) -> None:
        """Count the credit that is returned to an executor from now on, whose home this node becomes."""
        with self._lock:
            self._gates.pop(origin, None)

    def leave(self, origin: ExecutorId) -> tuple[CreditInUse, ...]:
        """Return the credit in use of an executor that leaves, which sends nothing more from here."""
        return tuple(CreditInUse(target, *gate.leave()) for target, gate in list(self._gates.get(origin, {}).items()))

    def arrive(self, origin: ExecutorId, credit: Iterable[CreditInUse]) -> None:
        """Begin with the credit that was in use when an executor left its home before."""
        for target, nbytes, batches in credit:
            self._gate(origin, target).arrive(nbytes, batches)

    # control records, in one order with the batches

    def emit_watermark(self, watermark: Watermark) -> None:
        """Send a watermark to the next receivers, behind what its origin has delivered."""
        self._send_all(
            watermark.origin,
            lambda instance, version: instance.receive_watermark(watermark, version),
            lambda peer, target, version: peer.send_watermark(self._spec.generation_id, target, watermark, version),
        )

    def emit_barrier(self, barrier: Barrier) -> None:
        """Send a barrier to the next receivers, behind what its origin has delivered."""
        self._send_all(
            barrier.origin,
            lambda instance, _: instance.receive_barrier(barrier),
            lambda peer, target, _: peer.send_barrier(self._spec.generation_id, target, barrier),
        )

    def end(self, origin: ExecutorId) -> None:
        """Tell the next receivers that an instance has delivered its last batch."""
        self._send_all(
            origin,
            lambda instance, version: instance.input_ended(origin, version),
            lambda peer, target, version: peer.send_end(self._spec.generation_id, target, origin, version),
            last=True,
        )

    def _send_all(
        self,
        origin: ExecutorId,
        take: Callable[[Instance, int], None],
        send: Callable[[Peer, ExecutorId, int], None],
        last: bool = False,
    ) -> None:
        """Send a control record to the next receivers of an instance; to those here by `take`, to others by `send`.

        Raises
        ------
        NodeLost
            If there is no connection to one of them.
        """
        for name in dict.fromkeys(exit_.target for exit_ in self._components[origin.component].exits):
            sends = self.tier.sends(origin, name)
            if sends is None:
                node = self.tier.sinks_of(origin)
                self._send_one(node, ExecutorId(name, node), take, send, 0)
                continue
            table = sends.begin()
            for index, node in enumerate(table.homes):
                self._send_one(node, ExecutorId(name, index), take, send, table.version)
            if last:
                sends.finish()
            for mark in sends.end(table):
                self.send_mark(origin, name, mark)

    def _send_one(
        self,
        node: int,
        target: ExecutorId,
        take: Callable[[Instance, int], None],
        send: Callable[[Peer, ExecutorId, int], None],
        version: int,
    ) -> None:
        spec = self._spec
        if node == spec.node:
            self._take(target, lambda instance: take(instance, version))
        else:
            send(self._peer(spec.nodes[node]), target, version)

    def send_mark(self, origin: ExecutorId, component: str, due: MarkDue) -> None:
        """Send an end mark to the old home of an executor, behind the last send of an instance here."""
        spec, target, mark = self._spec, ExecutorId(component, due.executor), events.EndMark(origin, due.version)
        if due.home == spec.node:
            self.receive_end_mark(target, mark)
        else:
            self._peer(spec.nodes[due.home]).send_end_mark(spec.generation_id, target, mark)

    def receive_watermark(self, target: ExecutorId, watermark: Watermark, version: int = 0) -> None:
        """Take a watermark for an instance on this node."""
        with TURNS.without_waiting():
            self._take(target, lambda instance: instance.receive_watermark(watermark, version))

    def receive_barrier(self, target: ExecutorId, barrier: Barrier) -> None:
        """Take a barrier for an instance on this node."""
        with TURNS.without_waiting():
            self._take(target, lambda instance: instance.receive_barrier(barrier))

    def input_ended(self, target: ExecutorId, origin: ExecutorId, version: int = 0) -> None:
        """Take the end of an upstream instance for an instance on this node."""
        with TURNS.without_waiting():
            self._take(target, lambda instance: instance.input_ended(origin, version))

    def receive_end_mark(self, target: ExecutorId, mark: events.EndMark) -> None:
        """Take the end mark of an upstream instance for an executor whose home this node ceases to be."""
        home = self._homes.get(target)
        if home is None:
            raise ProtocolError(f"{target} is not at home on node {self._spec.node}, but {mark} has arrived there")
        arrival = self.arrivals.get(target)
        if arrival is None or arrival.admit(lambda home: home.receive_end_mark(mark)):
            with TURNS.without_waiting():
                home.receive_end_mark(mark)

    # between homes and remote tasks

    def send_messages(
        self, node: int, executor: ExecutorId, messages: Sequence[ToRemote | ToHome], fence: Fence
    ) -> None:
        """Send messages between an executor's home and its remote tasks, in order.

        Raises
        ------
        NodeLost
            If there is no connection to the node.
        """
        spec = self._spec
        self._peer(spec.nodes[node]).send_messages(spec.generation_id, executor, spec.node, messages, fence)
