"""Failover of a lost node's tasks: other tasks replay the rows whose effect the primary copy lacks.

Notes
-----
Elasticutor, section 3.1: the primary copy has what a lost task did up to its last flush, its pending queue what it was
sent since. Here the rows of the pending queue return to the front of the rows that wait for their shard, and the shard
moves without a label to another task. Sub-batches are emitted in the order of their numbers, so each row is marked with
whether its outputs have left; a sub-batch may be split by shards, and its parts may be joined with others of the same
mark.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from dask_elastic.executor.pending import Sent
from dask_elastic.executor.piece import Block, Piece, Receipt, Replay, pieces_by_route, sorted_block
from dask_elastic.executor.routes import Routes
from dask_elastic.executor.task import Task
from dask_elastic.executor.task_status import TaskEvent
from dask_elastic.vocab.columns.row_sample import row_sample
from dask_elastic.vocab.errors import PoisonBatch
from dask_elastic.vocab.identity import ExecutorId
from dask_elastic.vocab.state_record import TimersDue

RECORDS = 1_000


@dataclass(frozen=True, slots=True)
class RecoveryRecord:
    """The failover of the tasks of one lost node.

    Parameters
    ----------
    node, tasks, shards : int
        The node, and how many tasks and shards were lost with it.
    rows : int
        Rows to replay.
    lost : float
        When the loss was noticed, seconds.
    first, ended : float or None
        When the first and the last of these rows were processed again; None before, and `first` also without rows.
    """

    node: int
    tasks: int
    shards: int
    rows: int
    lost: float
    first: float | None = None
    ended: float | None = None


class Recovery:
    """The replays of one executor after lost nodes; the caller holds the executor's lock.

    Parameters
    ----------
    executor : ExecutorId
        The executor.
    routes : Routes
        Table, tasks and queues.

    Attributes
    ----------
    keys : tuple of str
        The key columns, by which errors name rows; set before the executor starts.
    rows : int
        Rows still to replay.
    losses : int
        Nodes lost so far.
    records : deque of RecoveryRecord
        The newest losses, oldest first.
    """

    def __init__(self, executor: ExecutorId, routes: Routes):
        self.executor = executor
        self.routes = routes
        self.keys: tuple[str, ...] = ()
        self.rows = 0
        self.losses = 0
        self.records: deque[RecoveryRecord] = deque(maxlen=RECORDS)

    def lose(self, node: int, tasks: Sequence[Task], now: float, died: bool = False) -> int:
        """Drop lost tasks, and return their rows to the waiting rows of their shards, which are paused.

        Parameters
        ----------
        node : int
            The lost node.
        tasks : sequence of Task
            Its tasks.
        now : float
            The time in seconds.
        died : bool
            Whether the node is known to have died, perhaps of the sub-batches that it was processing.

        Returns
        -------
        int
            Rows that had been settled and will be settled again.

        Raises
        ------
        PoisonBatch
            If the node died of rows that another node had died of.
        """
        for task in tasks if died else ():
            self._check_suspects(task)
        before = self.rows
        shards = sum(len(self.routes.table.shards_of(task.number)) for task in tasks)
        settled = 0
        for task in tasks:
            task.handle(TaskEvent.NODE_LOST)
            del self.routes.tasks[task.number]
            settled += self._put_back(task, now, died)
        rows = self.rows - before
        self.losses += 1
        self.records.append(RecoveryRecord(node, len(tasks), shards, rows, now, ended=None if rows else now))
        return settled

    def _check_suspects(self, task: Task) -> None:
        """Raise `PoisonBatch` if another node had died of rows that the lost task was processing."""
        sent = sent_in_process(task)
        if sent is not None and any(piece.suspect for piece in sent.work.pieces):
            raise PoisonBatch(self.executor.component, self.described(sent))

    def described(self, sent: Sent) -> str:
        """Return a text by which a user recognises a sub-batch that is not settled."""
        work = sent.work
        if isinstance(work.record, TimersDue):
            return "timers or windows that were due"
        origins = sorted({str(piece.receipt.origin) for piece in work.pieces})
        return f"{row_sample(work.batch().rows, self.keys)}, from {', '.join(origins)}"

    def _put_back(self, task: Task, now: float, died: bool) -> int:
        assert task.pending is not None
        settled = 0
        returned: dict[int, list[Piece]] = {}
        for sent in task.pending:
            # The node may have processed more than it has reported: it may have died of any of these.
            suspect = died and not sent.settled
            for shard, piece in self._lacking(task, sent, now):
                returned.setdefault(shard, []).append(piece._replace(suspect=piece.suspect or suspect))
                if sent.settled or sent.work.replay is Replay.NONE:
                    self.rows += piece.length
                if sent.settled:
                    settled += piece.length
        for waiting in task.queue.pieces:
            for shard, piece in self._by_shard(waiting):
                returned.setdefault(shard, []).append(piece)
        for shard, pieces in returned.items():
            self.routes.put_back(shard, pieces)
        return settled

    def _lacking(self, task: Task, sent: Sent, now: float) -> Iterator[tuple[int, Piece]]:
        """Cut out of a sub-batch the rows of each shard whose effect the primary copy lacks."""
        assert task.pending is not None
        left = sent.settled or sent.number <= task.pending.emitted or sent.work.silent
        replay = Replay.SILENT if left else Replay.LOUD
        for taken in [self._settled_piece(sent, now)] if sent.settled else sent.work.pieces:
            for shard, piece in self._by_shard(taken._replace(replay=replay, taken=sent.work.now)):
                if task.pending.lacks(shard, sent.number):
                    yield shard, piece

    def _settled_piece(self, sent: Sent, now: float) -> Piece:
        batch = sent.work.batch()
        assert batch.hashes is not None
        receipt = Receipt.for_replay(self.executor, sent.nbytes, batch, now)
        block = Block(batch.rows, batch.hashes, record=batch.record, side=sent.work.side)
        return Piece(block, 0, batch.rows.num_rows, receipt)

    def _by_shard(self, piece: Piece) -> Iterator[tuple[int, Piece]]:
        """Cut out of a piece the rows of each paused shard; its other shards had left the task before."""
        block = sorted_block(*piece.block.part(piece.start, piece.stop), self.routes.space, self.routes.table)
        block = block._replace(record=piece.block.record, side=piece.block.side)
        for route, shard, part in pieces_by_route(block, piece.receipt, self.routes.table):
            if route < 0:
                yield shard, part._replace(replay=piece.replay, suspect=piece.suspect, taken=piece.taken)

    def has_suspects(self) -> bool:
        """Whether rows that a node may have died of are at home: they wait, or a task at home processes them."""
        return self.rows > 0 and any(piece.suspect for piece in self._at_home())

    def _at_home(self) -> Iterator[Piece]:
        for pieces in self.routes.waiting.values():
            yield from pieces
        for task in self.routes.tasks.values():
            yield from task.queue.pieces
            for work in task.in_flight.values() if task.at_home else ():
                yield from work.pieces

    def seconds_to_first(self) -> tuple[float, float] | None:
        """Return p50 and p99 of the seconds from a loss to the first replayed row; None without such a row."""
        seconds = [record.first - record.lost for record in self.records if record.first is not None]
        if not seconds:
            return None
        # No interpolation: p99 of a few values is the largest of them.
        p50, p99 = np.quantile(seconds, [0.5, 0.99], method="higher").tolist()
        return p50, p99

    def done(self, rows: int, now: float) -> bool:
        """Count replayed rows.

        Parameters
        ----------
        rows : int
            Rows that were processed again.
        now : float
            The time in seconds.

        Returns
        -------
        bool
            Whether they were the last ones.
        """
        self.rows -= rows
        over = self.rows == 0
        for position, record in enumerate(self.records):
            if record.ended is None:
                first = now if record.first is None else record.first
                self.records[position] = replace(record, first=first, ended=now if over else None)
        return over


def sent_in_process(task: Task) -> Sent | None:
    """Return the sub-batch that a remote task processes, or processes next, as far as its home knows."""
    assert task.pending is not None
    return next((sent for sent in task.pending if not sent.settled), None)
