"""How a simulated job brings batches and control records to their receivers, and returns credit."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable, Sequence
from dataclasses import replace
from functools import partial

from dask_elastic.executor import events
from dask_elastic.routing.group_table import GroupTable
from dask_elastic.routing.keyspace import KeySpace
from dask_elastic.routing.mark_due import MarkDue
from dask_elastic.simulator.credit import Credits
from dask_elastic.simulator.fiber import Condition, FiberSteps
from dask_elastic.simulator.homes.first_tier import FirstTier
from dask_elastic.simulator.homes.home_moves import HomeMoves
from dask_elastic.simulator.network import Credit, Item, Network, Sent
from dask_elastic.simulator.sink import SimulatedSink
from dask_elastic.simulator.world_options import WorldOptions
from dask_elastic.vocab.batch import Delivery
from dask_elastic.vocab.identity import ExecutorId


class Deliveries:
    """The sending part of a `World`, which has these attributes."""

    options: WorldOptions
    tier: FirstTier
    moves: HomeMoves
    network: Network
    spaces: dict[str, KeySpace]
    sinks: dict[ExecutorId, SimulatedSink]
    credits: dict[tuple[ExecutorId, ExecutorId], Credits]

    @property
    def is_moving(self) -> bool:
        """Whether a home or key groups move."""
        raise NotImplementedError

    def record(self, what: str, *values: object) -> None:
        """Add an entry to the history."""
        raise NotImplementedError

    def node_of(self, instance: ExecutorId) -> int:
        """Return the node of an instance."""
        raise NotImplementedError

    def bring(self, source: int, node: int, sent: Sent) -> FiberSteps:
        """Bring what an instance sends to a node."""
        raise NotImplementedError

    def deliver(self, origin: ExecutorId, deliveries: Iterable[Delivery]) -> FiberSteps:
        """Hand batches to the next receivers; waits while their windows are full."""
        left: Sequence[Delivery] = [*deliveries]
        while left := (yield from self.deliver_now(origin, left)):
            yield partial(self._may_send, origin, left[0].target)

    def deliver_now(
        self, origin: ExecutorId, deliveries: Sequence[Delivery]
    ) -> Generator[Condition | None, None, Sequence[Delivery]]:
        """Hand batches to the next receivers until a window is full or the target is paused; returns the others."""
        left = deque(deliveries)
        while left:
            self._split_again(origin, left)
            target, batch = left[0]
            if not self._may_send(origin, target):
                return [*left]
            left.popleft()
            credit = self._credit(origin, target)
            credit.acquire(batch.nbytes)
            self.record("{} rows to {}", batch.rows.num_rows, target)
            yield from self._send([target], origin, (batch, batch.nbytes))
        return ()

    def _may_send(self, origin: ExecutorId, target: ExecutorId) -> bool:
        """Return whether there is credit, and the target's groups are not moving with its upstream instances paused."""
        if not self._credit(origin, target).has_room():
            return False
        return target in self.sinks or not self.tier.sends(origin, self.node_of(origin), target.component).paused

    def _split_again(self, origin: ExecutorId, left: deque[Delivery]) -> None:
        """Split the first batch by the newest table, if it was split by an older one."""
        target, batch = left[0]
        node = self.node_of(origin)
        table = self.tier.groups_at(node, target.component)
        if table is None or batch.hashes is None:
            return
        table = self.tier.sends(origin, node, target.component).current
        if batch.version == table.version:
            return
        left.popleft()
        groups = self.spaces[target.component].shard_of(batch.hashes)
        parts = [
            Delivery(
                ExecutorId(target.component, executor),
                batch._replace(rows=rows, hashes=hashes, row_bytes=None, version=table.version),
            )
            for executor, rows, hashes in table.split(batch.rows, batch.hashes, groups)
        ]
        left.extendleft(reversed(parts))

    def send_marks(self, origin: ExecutorId, component: str, due: list[MarkDue]) -> FiberSteps:
        """Send the end marks that are due."""
        for executor, home, version in due:
            mark = events.EndMark(origin, version)
            yield from self.bring(self.node_of(origin), home, Sent(ExecutorId(component, executor), origin, mark))

    def _send(self, targets: Sequence[ExecutorId], origin: ExecutorId, item: Item) -> FiberSteps:
        """Send to executors of one operator at their homes, or to a sink."""
        source, component = self.node_of(origin), targets[0].component
        if targets[0] in self.sinks:
            yield from self.bring(source, targets[0].index, Sent(targets[0], origin, item))
            return
        sends = self.tier.sends(origin, source, component)
        table = sends.begin()
        if isinstance(item, events.InputWatermark | events.InputEnded) and isinstance(table, GroupTable):
            item = replace(item, version=table.version)
        if self.is_moving:
            # Threads may switch here.
            yield None
        for target in targets:
            yield from self.bring(source, table.homes[target.index], Sent(target, origin, item))
        if isinstance(item, events.InputEnded):
            sends.finish()
        if due := sends.end(table):
            yield from self.send_marks(origin, component, due)

    def release(self, origin: ExecutorId, target: ExecutorId, nbytes: int) -> None:
        """Return credit to an upstream instance."""
        source = self.node_of(target)
        node = self.tier.emitter(source, origin)
        if source == node:
            self._credit(origin, target).release(nbytes)
        else:
            self.network.send(source, node, Credit(target, origin, nbytes))

    def _credit(self, origin: ExecutorId, target: ExecutorId) -> Credits:
        credit = self.credits.get((origin, target))
        if credit is None:
            credit = self.credits[origin, target] = Credits(self.options.window)
        return credit
