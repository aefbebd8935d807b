"""The parts of an elastic executor, and what can be read of them at any time."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import numpy as np
import pyarrow as pa

from dask_elastic.executor.control_records.cuts import Cuts
from dask_elastic.executor.control_records.inputs import Inputs
from dask_elastic.executor.control_records.sharing import Sharing
from dask_elastic.executor.control_records.state_records import INPUT_SCHEMA, Grid, StateRecords
from dask_elastic.executor.control_records.watermarks import Watermarks
from dask_elastic.executor.cores import Cores
from dask_elastic.executor.flushes import Flushes
from dask_elastic.executor.instructions import Instruction
from dask_elastic.executor.limits import ExecutorLimits
from dask_elastic.executor.link import Links
from dask_elastic.executor.measures import ExecutorMeasure, Measures
from dask_elastic.executor.moves import MoveRecord, Moves
from dask_elastic.executor.piece import Piece, Receipt, sorted_block
from dask_elastic.executor.primary_state import PrimaryState
from dask_elastic.executor.recovery import Recovery, RecoveryRecord
from dask_elastic.executor.routes import Routes
from dask_elastic.executor.task import first_takers, first_tasks
from dask_elastic.migration.strategy import DIVIDING
from dask_elastic.planning.gathering import Gathering
from dask_elastic.routing.keyspace import KeySpace
from dask_elastic.state.codec import IDENTITY
from dask_elastic.state.shard_owners import NO_OWNER
from dask_elastic.topology.operators import Compute
from dask_elastic.vocab.arrow_arrays import numpy_of
from dask_elastic.vocab.identity import ExecutorId
from dask_elastic.vocab.lock import MakeLock, NoLock
from dask_elastic.vocab.state_record import Clock, PartialsMoved, TimersDue


class ExecutorParts:
    """What an elastic executor consists of; `ElasticExecutor` describes the parameters.

    Attributes
    ----------
    finished : bool
        Whether every row is processed and flushed, and all inputs have ended.
    task_ended : callable
        Called, without the lock, when a task has ended or was lost with its node.
    time_taken : float
        The newest processing time of a row, seconds: the processing time of a shard never goes back.
    """

    def __init__(
        self,
        identity: ExecutorId,
        space: KeySpace,
        home: int,
        cores: Mapping[int, int],
        inputs: Iterable[ExecutorId],
        make_lock: MakeLock = NoLock,
        limits: ExecutorLimits | None = None,
        timed: Iterable[ExecutorId] = (),
        clocks: Collection[Clock] = (),
        grid: Grid | None = None,
        delay: int = 0,
        store: PrimaryState | None = None,
    ):
        self.identity = identity
        self.home = home
        self.limits = limits or ExecutorLimits()
        self.lock = make_lock()
        # A store without keys is false.
        self.store = PrimaryState(space.shards, space.shard_of, make_lock) if store is None else store
        tasks = first_tasks(home, cores, self.limits.pending_bytes)
        gathering = Gathering(self.limits.first_takers) if self.limits.gathers else None
        self.routes = Routes(space, tasks, first_takers(tasks, None if gathering is None else gathering.most))
        self.cuts = Cuts()
        self.moves = Moves(self.routes, self.store, self.limits.patience, self.limits.migration, self.cuts)
        self.cores = Cores(
            self.routes, self.moves, home, self.limits.threshold, self.limits.pending_bytes, self.limits.light_load,
            gathering,
        )  # fmt: skip
        self.recovery = Recovery(identity, self.routes)
        self.measures = Measures(space.shards)
        self.cores.steady_seconds = lambda now: self.measures.steady_seconds(now)
        self.flushes = Flushes()
        self.records = StateRecords(space, clocks, grid, identity.index)
        self.sharing = Sharing()
        self.finished = False
        self.task_ended: Callable[[], None] = lambda: None
        self.links = Links(self.routes, self.lock)
        self.time_taken = 0.0
        self.inputs = Inputs(identity, inputs, timed)
        self.watermarks = Watermarks(self.inputs, self.lock, delay)
        self._pending_rows = 0
        self._final_flush_requested = False
        self.moves.instant.merging.enter = self._enter_partials
        self.moves.instant.merging.is_awaited = lambda: self.flushes.are_held
        self.moves.instant.opened = self.flushes.hold_all
        self.moves.choice.measures = self.measures
        self.moves.choice.loads = self._loads
        self.store.grant_all(self._first_owners())

    def _first_owners(self) -> np.ndarray:
        """Return the task at home that owns each shard in the beginning, `NO_OWNER` where there is none."""
        owner = self.routes.table.owner.astype(np.intp)
        here = [number for number, task in self.routes.tasks.items() if task.at_home]
        return np.where(np.isin(owner, here), owner, NO_OWNER)

    def divide_windows(self, computes: Sequence[Compute]) -> None:
        """Find out the windows of rows if moves of shards may be smooth; called before the executor starts."""
        if self.limits.migration in DIVIDING and any(one.windowing is not None for one in computes):
            from dask_elastic.executor.windows.row_sides import row_sides

            self.routes.shared.sides = row_sides(computes)

    def _enter_partials(self, state: pa.RecordBatch, shard: int, now: float) -> Piece:
        """Enter partials that a shard's owner merges; they count as rows do until they are settled."""
        described = dict(state.schema.metadata or {})
        if self.store.input_schema is not None:
            described[INPUT_SCHEMA] = self.store.input_schema.serialize().to_pybytes()
        state = state.replace_schema_metadata(described)
        receipt = Receipt(self.identity, 0, state.num_rows, now, now)
        receipt.row_bytes = state.nbytes / state.num_rows
        receipt.reached = self.records.stamp(self.store.event_time)
        receipt.span = self.watermarks.arrived()
        self._pending_rows += receipt.rows
        hashes = numpy_of(state.column(IDENTITY.index("__hash")))
        block = sorted_block(state, hashes, self.routes.space, self.routes.table)
        return Piece(block._replace(record=PartialsMoved(shard)), 0, receipt.rows, receipt)

    def _loads(self, now: float) -> np.ndarray:
        """Return the work of each shard, in seconds; see `Measures.work_by_shard`."""
        return self.measures.work_by_shard(self.routes.backlog(), self.routes.in_flight(), now)

    def _looked(self, now: float) -> np.ndarray:
        """Return the work of each shard, in seconds, and let the cores take note whether the load is light."""
        loads = self._loads(now)
        if not self._final_flush_requested:
            # Nothing arrives any more: where its shards are does not matter.
            self.cores.look(self._lasting_load(), now)
        return loads

    def _balance(self, computing: float | None, now: float) -> list[Instruction]:
        self.cores.look_at_tasks(self.measures.rows, computing, now)
        loads = self._looked(now)
        return self.cores.drain(loads, now) + self.cores.balance(loads, now)

    def _lasting_load(self) -> float | None:
        return self.measures.lasting_load(self._pending_rows - self.routes.record_rows)

    def _note_event_time(self, record: TimersDue, now: float) -> None:
        if record.event is not None and not record.last:
            # After a restart event time begins at what the sources send then. The end is no event time: a job that was
            # drained may be resumed, and its rows are not late.
            before = self.store.event_time
            self.store.event_time = record.event if before is None else max(record.event, before)
            self.moves.choice.record_entered(record.event, now)

    @property
    def _lacks_state(self) -> bool:
        """Whether flushes of all tasks would not bring the primary copy up to date."""
        return self.recovery.rows > 0 or self.moves.instant.lacks_state

    @property
    def pending_rows(self) -> int:
        """The rows that are not settled, those of state records included."""
        return self._pending_rows

    def recoveries(self) -> list[RecoveryRecord]:
        """Return the newest losses of remote tasks, oldest first."""
        with self.lock:
            return list(self.recovery.records)

    def measure(self, now: float) -> ExecutorMeasure:
        """Return the measures of the executor at this moment."""
        # Measuring the state waits until the tasks finish their batches: not under the lock that every batch takes.
        by_compute, windows = self.store.shard_bytes_by_compute(), self.store.counted()
        shard_bytes = sum(by_compute.values(), np.zeros(self.store.shards, np.int64))
        sizes = {name: int(part.sum()) for name, part in by_compute.items()}
        computes = self.store.compute_measures(self.identity.component, sizes)
        stores = self.store.stores(self.identity.component).values()
        on_disk = sum(store.state_bytes() for store in stores if store.storage.on_disk)
        open_windows = None if windows is None else self.store.open_windows
        with self.lock:
            self.moves.choice.shard_bytes = shard_bytes
            hops = [task.hop for task in self.routes.tasks.values() if task.hop is not None]
            return self.measures.measured(
                now,
                executor=self.identity,
                node=self.home,
                cores=self.cores.by_node(),
                queue_rows=self._pending_rows - self.routes.record_rows,
                state_bytes=int(shard_bytes.sum()),
                state_on_disk=on_disk,
                shard_bytes=shard_bytes,
                moves=self.moves.finished,
                moves_across=self.moves.finished_across,
                pending_bytes=self.routes.pending_bytes,
                refused=self.links.refused,
                recovered=self.recovery.losses,
                recovery=self.recovery.seconds_to_first(),
                event_time=self.watermarks.now.time,
                windows=windows,
                open_windows=open_windows,
                window_costs=self.store.costs(),
                separate=self.sharing.planned,
                computes=computes,
                hop=sum(hops) / len(hops) if hops else None,
                enough_cores=None if self.cores.gathering is None else self.cores.gathering.proven(now),
            )

    def finished_moves(self) -> list[MoveRecord]:
        """Return the newest finished shard moves, oldest first."""
        with self.lock:
            return list(self.moves.recent)

    def assignment(self) -> tuple[np.ndarray, dict[int, int]]:
        """Return the task of each shard, and the node of each task."""
        with self.lock:
            return self.routes.table.owner.copy(), {t.number: t.node for t in self.routes.tasks.values()}

    def task_nodes(self) -> set[int]:
        """Return the nodes of all tasks, draining ones included."""
        with self.lock:
            return {task.node for task in self.routes.tasks.values()}
