"""An executor of the resource-centric paradigm: it owns some key groups of its operator, which come and go."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from dask_elastic.executor import events
from dask_elastic.executor import instructions as do
from dask_elastic.executor.control_records.state_records import RECORD_BYTES, StateRecords, with_schema
from dask_elastic.executor.control_records.watermarks import Watermarks
from dask_elastic.executor.executor import FIRST_ROWS, ElasticExecutor
from dask_elastic.executor.groups.exchange import Exchange
from dask_elastic.executor.groups.handed_groups import HandedGroups
from dask_elastic.executor.measures import ExecutorMeasure
from dask_elastic.executor.piece import Block, Piece, Receipt
from dask_elastic.executor.task import Task
from dask_elastic.executor.task_queue import Work
from dask_elastic.meters.group_flows import GroupFlows
from dask_elastic.meters.shard_arrivals import COMPARED_SECONDS, ShardArrivals
from dask_elastic.state.shard_owners import NO_OWNER
from dask_elastic.topology.operators import Compute
from dask_elastic.vocab.arrow_arrays import array_of
from dask_elastic.vocab.batch import Batch
from dask_elastic.vocab.errors import MoveRefused, PlanningError, ProtocolError
from dask_elastic.vocab.identity import ExecutorId
from dask_elastic.vocab.state_record import TimersDue

HASTE_SECONDS = 0.001
"""Seconds of work that a task takes at once while groups leave or come progressively, for which rows wait elsewhere."""


class GroupExecutor(ElasticExecutor):
    """An executor on one core, whose shards are the key groups of its operator; it owns some of them.

    Parameters
    ----------
    *args, **kwargs
        As for `ElasticExecutor`; the key space has as many shards in each executor as the operator has groups.
    groups : collection of int
        The groups that it owns in the beginning.

    Raises
    ------
    PlanningError
        If it has several cores, or one that is not at its home.

    Attributes
    ----------
    owned : set of int
        The groups that it owns: their rows come here, and their state is here.
    exchange : Exchange or None
        Its part in the move of groups that is in progress.
    flows : GroupFlows
        The samples of the traffic that its groups send, under its lock.

    Notes
    -----
    Decision 86; State migration, section 3.2. During a move, rows of groups to come wait in the receiver, as those of a
    moving shard do, so watermarks wait for them. Rows and state records of groups that leave or come are entered apart
    from the others, since their event time differs. The executor does not end before the move does.
    """

    def __init__(self, *args: Any, groups: Collection[int], **kwargs: Any) -> None:
        self._first_groups = [*groups]
        super().__init__(*args, **kwargs)
        nodes = [task.node for task in self.routes.tasks.values()]
        if nodes != [self.home]:
            raise PlanningError(
                f"{self.identity} has cores on nodes {nodes}, but an executor whose key groups move has one core, at "
                f"its home, node {self.home}"
            )
        self.owned: set[int] = set()
        self.exchange: Exchange | None = None
        self._grid = kwargs.get("grid")
        self.flows = GroupFlows()
        self._measure_anew()
        self._own({*groups})

    def _first_owners(self) -> np.ndarray:
        owners = np.full(self.routes.space.shards, NO_OWNER, np.intp)
        owners[self._first_groups] = super()._first_owners()[self._first_groups]
        return owners

    def divide_windows(self, computes: Sequence[Compute]) -> None:
        """Decide whether rows of windows are added to instances, which does not change; called before the start."""
        windowing = computes[0].windowing
        self.sharing.change(windowing is not None and windowing.separate_if_fixed, None)

    def _own(self, groups: set[int]) -> None:
        """Own some groups. State records are addressed to these; those that leave get their own."""
        self.owned = groups
        self.store.groups = tuple(sorted(groups))
        self.records.address(groups - self._leaving)

    @property
    def _leaving(self) -> frozenset[int]:
        return frozenset() if self.exchange is None else frozenset(self.exchange.loses)

    def _records_of(self, groups: Collection[int]) -> StateRecords:
        made = StateRecords(self.routes.space, self.records.clocks, self._grid)
        made.address(groups)
        made.resume(self.records.standing())
        return made

    def _measure_anew(self) -> None:
        """Forget what has arrived: instances have paused since."""
        self.measures.demand = ShardArrivals(self.routes.space.shards, COMPARED_SECONDS, finds_jumps=False)

    def measure(self, now: float) -> ExecutorMeasure:
        """Return the measures of the executor at this moment, with what arrives for each group."""
        measured = super().measure(now)
        with self.lock:
            load = self.measures.arriving_load(self.routes.backlog(), self.routes.in_flight(), now)
            rows = self.measures.demand.per_second()
            flows = () if rows is None else self.flows.measured(now, rows)
        return replace(measured, arriving_load=load, flows=flows)

    def assignment(self) -> tuple[np.ndarray, dict[int, int]]:
        """Return the task of each group, `NO_OWNER` for those that it does not own, and the node of the task."""
        owner, nodes = super().assignment()
        with self.lock:
            own = np.isin(np.arange(len(owner)), [*self.owned])
        return np.where(own, owner.astype(np.int64), NO_OWNER), nodes

    # data path

    def _accept(
        self, block: Block, origin: ExecutorId, batch: Batch, nbytes: int, now: float, event_time: int | None,
        is_part: bool = False,
    ) -> list[do.Instruction]:  # fmt: skip
        exchange = self.exchange
        if exchange is None or not exchange.loses.keys() | exchange.missing.keys():
            return super()._accept(block, origin, batch, nbytes, now, event_time, is_part)
        instructions: list[do.Instruction] = []
        rows = batch.rows.num_rows
        for group, part in self._parts(exchange, batch):
            at = exchange.left_at if group in exchange.loses else event_time
            # Credit is shared by rows: that of rows which wait for their group returns when these are processed.
            share = nbytes * part.rows.num_rows // rows
            rows, nbytes = rows - part.rows.num_rows, nbytes - share
            # The last rows count as the batch.
            instructions += super()._accept(self.routes.split(part), origin, part, share, now, at, is_part=rows > 0)
        return instructions

    def _parts(self, exchange: Exchange, batch: Batch) -> Iterator[tuple[int | None, Batch]]:
        """Yield the rows of each group that leaves or comes, then those of all others with None."""
        assert batch.hashes is not None
        groups = self.routes.space.shard_of(batch.hashes)
        moving = np.isin(groups, [*exchange.loses, *exchange.missing])
        for group in np.unique(groups[moving]).tolist():
            yield group, _chosen(batch, groups == group)
        if not moving.all():
            yield None, _chosen(batch, ~moving)

    def _limit(self, task: Task) -> int:
        most = super()._limit(task)
        if self.exchange is None or self.exchange.drains:
            return most
        return min(most, self.measures.cost.rows_within(HASTE_SECONDS) or FIRST_ROWS)

    def _receipts(self, work: Work) -> list[do.Instruction]:
        """Settle the receipts of work; the last one that groups wait for lets them leave."""
        released = super()._receipts(work)
        exchange = self.exchange
        if exchange is None:
            return released
        if work in exchange.taken_before:
            exchange.taken_before.remove(work)
            released += _held(exchange)
        if not exchange.rows:
            return released
        by_shard = work.rows_by_shard(self.routes.space)
        # The only task takes its work in order: what has come since does not count.
        done = work.rows if exchange.drains else self._rows_leaving(exchange, by_shard)
        exchange.rows = max(0, exchange.rows - done)
        return released + self._drained(exchange)

    @staticmethod
    def _rows_leaving(exchange: Exchange, by_shard: np.ndarray) -> int:
        return int(by_shard[[*exchange.loses]].sum())

    # event time

    def _advanced(self, now: float) -> list[do.Instruction]:
        instructions = self._leaving_advanced(now) + super()._advanced(now)
        return instructions + self._marks_come(now)

    def _leaving_advanced(self, now: float) -> list[do.Instruction]:
        """Enter the event time that the groups which leave have reached, before a watermark passes."""
        exchange = self.exchange
        if exchange is None or not exchange.loses or exchange.is_drained or exchange.rows:
            return []
        record = exchange.records.reached(exchange.inputs.time)
        if record is None:
            return []
        before, exchange.left_at = exchange.left_at, record.event
        return self._enter_apart(exchange.records, [*exchange.loses], record, before, now)

    def _enter(self, record: TimersDue | None, now: float) -> list[do.Instruction]:
        if record is None:
            return []
        before = self.store.event_time
        if self.owned - self._leaving:
            instructions = super()._enter(record, now)
        else:
            instructions = []
            self._note_event_time(record, now)
        if self.exchange is not None and record.event is not None:
            for group, records in self.exchange.missing.items():
                instructions += self._enter_apart(records, [group], record, before, now)
        return instructions

    def _enter_apart(
        self, records: StateRecords, groups: Collection[int], record: TimersDue, before: int | None, now: float
    ) -> list[do.Instruction]:
        """Route a state record to groups that leave or come; `before` is the event time of their record before."""
        block = records.block(record, self.routes.table, self.store.input_schema)
        receipt = Receipt(self.identity, 0, len(block.hashes), now, now)
        receipt.row_bytes = RECORD_BYTES
        receipt.reached = self.records.stamp(before)
        receipt.span = self.watermarks.arrived()
        self._pending_rows += receipt.rows
        return [do.Wake(task) for task in self.routes.enqueue(block, receipt)]

    # control

    def _handle(self, event: events.Event, now: float) -> list[do.Instruction]:
        match event:
            case events.HoldGroups():
                return self._hold(event)
            case events.MarksDue(version):
                self._current(version).switched = True
                return self._marks_come(now)
            case events.EndMark(origin, version):
                # Another thread may have sent the end of the input before the mark, which it makes superfluous.
                if origin in self.inputs.open:
                    self._current(version).marked.add(origin)
                return self._marks_come(now)
            case events.GroupsGiven(version):
                self._current(version).given = True
                return self._exchanged(now)
            case events.GroupsInstalled(handed):
                self._current(handed.version).arrived.append(handed)
                return self._marks_come(now)
            case events.ForgetGroups(version):
                return self._forget(version, now)
            case events.SetCores() | events.MoveShard():
                raise PlanningError(f"{self.identity} has one core: its key groups move to other executors instead")
            case events.InputWatermark(watermark, version) if self.exchange is not None:
                self.exchange.advance(watermark, version)
            case events.InputEnded(origin, version) if self.exchange is not None:
                self.exchange.end(origin, version)
        return super()._handle(event, now)

    def _current(self, version: int) -> Exchange:
        if self.exchange is None or self.exchange.version != version:
            raise ProtocolError(f"{self.identity} takes no part in a move of groups to version {version}")
        return self.exchange

    def _hold(self, event: events.HoldGroups) -> list[do.Instruction]:
        if self.exchange is not None:
            raise MoveRefused(f"{self.identity} exchanges groups already, for version {self.exchange.version}")
        if not self.inputs.open:
            raise MoveRefused(f"{self.identity} has got its last row: its groups do not move any more")
        wrong = [*(self.owned & {*event.gains}), *({*event.loses} - self.owned)]
        if wrong:
            raise ProtocolError(f"{self.identity} owns {sorted(self.owned)}, so {event} cannot concern groups {wrong}")
        for group in event.gains:
            self.routes.hold(group)
        gains = {group: self._records_of([group]) for group in event.gains}
        leaving = self._records_of([*event.loses])
        at = self.store.event_time
        self.exchange = Exchange(event.version, gains, event.loses, event.drains, self.inputs, leaving, at)
        self._own(self.owned)
        if not event.drains:
            # Rows of the groups would wait for what is processed when the instances switch. Later work is short.
            tasks = self.routes.tasks.values()
            self.exchange.taken_before = [work for task in tasks for work in task.in_flight.values()]
        return _held(self.exchange)

    def _marks_come(self, now: float) -> list[do.Instruction]:
        """Go on with a move once the end marks of all inputs have come."""
        exchange = self.exchange
        if exchange is None or exchange.awaits_marks_of(self.inputs.open):
            return []
        instructions: list[do.Instruction] = []
        while exchange.arrived:
            instructions += self._gain(exchange, exchange.arrived.pop(), now)
        return [*instructions, *self._disown(exchange)]

    def _disown(self, exchange: Exchange) -> list[do.Instruction]:
        """Disown the groups that leave: no more of their rows can come, but the last ones may wait for tasks."""
        if exchange.given or exchange.is_drained or exchange.rows:
            return []
        self._own(self.owned - exchange.loses.keys())
        if exchange.drains:
            # Records already wait for the groups to come; rows do not, since the upstream instances are paused.
            waiting = sum(piece.length for pieces in self.routes.waiting.values() for piece in pieces)
            exchange.rows = self._pending_rows - waiting
        else:
            # Other groups do not wait for a move: these, for which rows wait elsewhere, are first.
            exchange.rows = self.routes.hasten(exchange.loses) + self._leaving_in_flight(exchange)
        return self._drained(exchange)

    def _leaving_in_flight(self, exchange: Exchange) -> int:
        """Return the rows of groups that leave, state records included, which are in flight."""
        taken = (work for task in self.routes.tasks.values() for work in task.in_flight.values())
        return sum(self._rows_leaving(exchange, work.rows_by_shard(self.routes.space)) for work in taken)

    def _drained(self, exchange: Exchange) -> list[do.Instruction]:
        if exchange.rows:
            return []
        exchange.is_drained = True
        for group in exchange.loses:
            self.store.revoke(group)
        return [do.GroupsDrained(exchange.version)]

    def _gain(self, exchange: Exchange, handed: HandedGroups, now: float) -> list[do.Instruction]:
        """Own groups whose state is here, and release what has waited for them."""
        if not exchange.missing.keys() >= {*handed.groups}:
            raise ProtocolError(f"{self.identity} got groups {handed.groups}, but waits for {sorted(exchange.missing)}")
        instructions: list[do.Instruction] = []
        here = self.store.event_time
        if handed.event_time is not None and (here is None or here < handed.event_time):
            # All inputs have switched: only one that was idle there, and not here, may be behind.
            instructions += self._enter(self.records.reached(handed.event_time), now)
        for group in handed.groups:
            self._continue(exchange, group, handed.event_time, now)
            del exchange.missing[group]
        self._own(self.owned | {*handed.groups})
        self.moves.finished += len(handed.groups)
        self.moves.finished_across += len(handed.groups) * handed.across
        owner = self.routes.table.owner.tolist()
        for group in handed.groups:
            # The task learns by this that there are timers and windows that it does not know.
            self.store.grant(group, owner[group])
            instructions += [do.Wake(task) for task in self.routes.resume_first(group, owner[group])]
        return [*instructions, *self._exchanged(now)]

    def _continue(self, exchange: Exchange, group: int, since: int | None, now: float) -> None:
        """Let what waits for a group continue from the event time of its last state record."""
        waiting = self.routes.waiting[group]
        pieces = [*waiting]
        waiting.clear()
        begun = exchange.begun_at
        if begun is not None and (since is None or since < begun):
            # It was idle inputs that let this executor be ahead.
            self._enter_first(exchange.missing[group], group, TimersDue(event=begun), since, now)
        for piece in pieces:
            if since is not None and _is_reached(piece, since):
                self._drop(piece, group)
                continue
            if since is not None and piece.receipt.reached is not None:
                piece.receipt.reached = max(piece.receipt.reached, since)
            waiting.append(self._described(piece))

    def _enter_first(
        self, records: StateRecords, group: int, record: TimersDue, before: int | None, now: float
    ) -> None:
        self._enter_apart(records, [group], record, before, now)

    def _described(self, piece: Piece) -> Piece:
        """Return a piece; a record that was entered before the input schema was known gets it."""
        rows, schema = piece.block.rows, self.store.input_schema
        if piece.block.record is None or schema is None or rows.schema.metadata is not None:
            return piece
        return piece._replace(block=piece.block._replace(rows=with_schema(rows, schema)))

    def _drop(self, piece: Piece, group: int) -> None:
        """Drop a state record that a group has processed where it was before."""
        piece.receipt.rows -= piece.length
        Watermarks.settled(piece.receipt.span)
        self._pending_rows -= piece.length

    def _exchanged(self, now: float) -> list[do.Instruction]:
        exchange = self.exchange
        if exchange is None or not exchange.is_complete:
            return []
        self.exchange = None
        if exchange.drains:
            # Nothing has arrived during the pause. Otherwise what has arrived for a group is counted, here and there.
            self._measure_anew()
            self.measures.note_arrived(self.routes.backlog(), self.routes.in_flight(), now)
        return [do.GroupsExchanged(exchange.version)]

    def _forget(self, version: int, now: float) -> list[do.Instruction]:
        """End a move that was cancelled before any upstream instance has switched."""
        exchange = self.exchange
        if exchange is None or exchange.version != version:
            return []
        self.exchange = None
        for group in exchange.missing:
            for piece in self.routes.waiting[group]:
                self._drop(piece, group)
            self.routes.waiting[group].clear()
            self.routes.resume(group, int(self.routes.table.owner[group]))
        self._own(self.owned)
        last = None if self.inputs.open else self.records.ended()
        if last is None or not exchange.loses:
            return []
        # All inputs have ended meanwhile: the groups that stay have had their last record, but not these.
        return self._enter_apart(exchange.records, [*exchange.loses], last, exchange.left_at, now)

    def _finish(self) -> list[do.Instruction]:
        # Neither the end nor a checkpoint comes while groups move; their rows may still come.
        return self.watermarks.due() if self.exchange is not None else super()._finish()


def _held(exchange: Exchange) -> list[do.Instruction]:
    return [] if exchange.taken_before else [do.GroupsHeld(exchange.version)]


def _chosen(batch: Batch, chosen: np.ndarray) -> Batch:
    assert batch.hashes is not None
    assert isinstance(batch.rows, pa.RecordBatch)
    if chosen.all():
        return batch
    return batch._replace(rows=batch.rows.filter(array_of(chosen)), hashes=batch.hashes[chosen], row_bytes=None)


def _is_reached(piece: Piece, since: int) -> bool:
    """Whether a piece is a record of an event time that is not later."""
    record = piece.block.record
    return isinstance(record, TimersDue) and not record.last and record.event is not None and record.event <= since
