"""Second tier of routing: the shard table, the tasks with their queues, and the rows of paused shards."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

import numpy as np

from dask_elastic.executor.moving.shared_shards import SharedShard, SharedShards, mixed
from dask_elastic.executor.piece import Block, Piece, Receipt, pieces_by_route, routed_block, sorted_block
from dask_elastic.executor.task import Task
from dask_elastic.executor.task_queue import LabelItem
from dask_elastic.executor.task_status import TaskStatus
from dask_elastic.routing.keyspace import KeySpace
from dask_elastic.routing.table import ShardTable
from dask_elastic.vocab.batch import Batch
from dask_elastic.vocab.errors import MoveRefused
from dask_elastic.vocab.state_record import TimersDue


def closes(piece: Piece) -> bool:
    """Whether a piece is a state record by which windows close."""
    return isinstance(piece.block.record, TimersDue)


class Routes:
    """Second tier of routing of one executor: from shards to tasks.

    Any thread may call `split`; for all else the caller holds the executor's lock.

    Parameters
    ----------
    space : KeySpace
        The component's key space.
    tasks : iterable of Task
        The first tasks.
    takers : iterable of int, optional
        Those to which the shards are assigned, round-robin; by default all.

    Attributes
    ----------
    sub_batches : int
        Into how many parts arriving batches were cut so far, one for each task that gets rows of it; rows of paused
        shards do not count.
    shared : SharedShards
        The shards whose windows two tasks have. The table has them as paused, so that their rows come here.
    """

    def __init__(self, space: KeySpace, tasks: Iterable[Task], takers: Iterable[int] | None = None):
        self.space = space
        self.tasks = {task.number: task for task in tasks}
        self.table = ShardTable.initial(space.shards, self.tasks if takers is None else takers)
        self.waiting: dict[int, deque[Piece]] = {}
        self.sub_batches = 0
        self.shared = SharedShards()

    def split(self, batch: Batch) -> Block:
        """Sort a batch by task, as the current table says; needs no lock."""
        assert batch.hashes is not None
        return routed_block(batch.rows, batch.hashes, self.space, self.table)

    def enqueue(self, block: Block, receipt: Receipt) -> list[int]:
        """Enqueue a split batch as the current table says; rows of paused shards join their waiting rows.

        Parameters
        ----------
        block : Block
            The batch as `split` returned it, perhaps against an older table.
        receipt : Receipt
            Accounting of the batch.

        Returns
        -------
        list of int
            The tasks to wake.
        """
        if block.bounds is None:
            task = self._task_of(block)
            if task is not None:
                return self._put(task, Piece(block, 0, len(block.hashes), receipt))
            block = sorted_block(block.rows, block.hashes, self.space, self.table)
        wakes: list[int] = []
        for route, _, piece in pieces_by_route(block, receipt, self.table):
            if -1 - route in self.shared:
                wakes += self.put_shared(-1 - route, piece)
            elif route < 0:
                self.waiting[-1 - route].append(piece)
            else:
                wakes += self._put(route, piece)
        return wakes

    def _task_of(self, block: Block) -> int | None:
        """Return the task that owns the shards of all rows, or None if there are several or a shard is paused."""
        if self.table.single is not None or block.row_shards is None:
            return self.table.single
        return self.table.task_of(block.row_shards)

    def _put(self, task: int, piece: Piece) -> list[int]:
        target = self.tasks[task]
        target.queue.put(piece)
        self.sub_batches += 1
        return self.wake(target)

    def share(self, shard: int, shared: SharedShard) -> list[int]:
        """Route a paused shard to two tasks, each of which gets the rows of its windows; returns the tasks to wake."""
        self.table = self.table.moved(shard, shared.target)
        self.table = self.table.pause(shard)
        self.shared.add(shard, shared)
        return [task for piece in self.waiting.pop(shard) for task in self.put_shared(shard, piece)]

    def has_side(self, task: Task, shard: int) -> bool:
        """Whether a task has to process what is about some of the windows of a shard only."""
        taken = [piece for work in task.in_flight.values() if work.side is not None for piece in work.pieces]
        pieces = [piece for piece in (*taken, *task.queue.pieces) if piece.block.side is not None]
        return any(shard in piece.row_shards(self.space) for piece in pieces)

    def is_closing(self, task: Task, shard: int) -> bool:
        """Whether a task has taken a state record by which windows of a shard close, and has not settled it."""
        taken = [work.pieces[0] for work in task.in_flight.values() if isinstance(work.record, TimersDue)]
        return any(shard in piece.row_shards(self.space) for piece in taken)

    def put_shared(self, shard: int, piece: Piece) -> list[int]:
        """Enqueue rows of a shard, or a state record, for those of two tasks that have windows of them."""
        return [task for number, part in self.shared.parts(shard, piece) for task in self._put(number, part)]

    def unshare(self, shard: int, source: Task | None) -> list[Piece]:
        """Route a shard to the later one of its two tasks; returns what waits in the queue of the earlier one."""
        shared = self.shared.remove(shard)
        # Cut out while the table has the shard as paused: the queue of the other task is not touched.
        pieces = [] if source is None else source.queue.extract(shard, self.space, self.table)
        self.table = self.table.moved(shard, shared.target)
        return pieces

    @staticmethod
    def wake(task: Task) -> list[int]:
        """Return the task's number if it sleeps, and mark it as awake."""
        if not task.sleeping:
            return []
        task.sleeping = False
        return [task.number]

    def pause(self, shard: int) -> None:
        """Stop routing a shard, and cut its rows out of the queue of its task."""
        source = self.tasks[int(self.table.owner[shard])]
        self.table = self.table.pause(shard)
        self.waiting[shard] = deque(source.queue.extract(shard, self.space, self.table))

    def send_label(self, source: Task, label: LabelItem) -> list[int]:
        """Send a label through a task; returns the tasks to wake."""
        source.queue.put_control(label)
        return self.wake(source)

    def resume(self, shard: int, target: int) -> list[int]:
        """Route a paused shard to `target` and release its waiting rows in order; returns the tasks to wake."""
        self.table = self.table.moved(shard, target)
        pieces = self.waiting.pop(shard)
        if not pieces:
            return []
        queue = self.tasks[target].queue
        for piece in pieces:
            queue.put(piece)
        return self.wake(self.tasks[target])

    def resume_first(self, shard: int, target: int) -> list[int]:
        """Do the same as `resume`, but let the waiting rows be taken before those of other shards."""
        self.table = self.table.moved(shard, target)
        pieces = self.waiting.pop(shard)
        if not pieces:
            return []
        self.tasks[target].queue.put_first(pieces)
        return self.wake(self.tasks[target])

    def hasten(self, shards: Iterable[int]) -> int:
        """Let the rows and state records of some shards be taken before those of all others; returns their number."""
        chosen = np.zeros(self.space.shards, np.bool_)
        chosen[[*shards]] = True
        return sum(task.queue.hasten(chosen, self.space) for task in self.tasks.values())

    def resume_until_record(self, shard: int, target: int) -> list[int]:
        """Route a paused shard to `target`, which gets the rows before the first closing record that waits.

        If there is one, the shard stays paused. Returns the tasks to wake.
        """
        pieces = self.waiting[shard]
        before = next((place for place, piece in enumerate(pieces) if closes(piece)), len(pieces))
        taken = [pieces.popleft() for _ in range(before)]
        held = self.waiting.pop(shard)
        self.table = self.table.moved(shard, target)
        if held:
            self.hold(shard)
            self.waiting[shard] = held
        for piece in taken:
            self.tasks[target].queue.put(piece)
        return self.wake(self.tasks[target]) if taken else []

    def has_record(self, shard: int) -> bool:
        """Whether a closing record waits for a paused shard."""
        return any(map(closes, self.waiting[shard]))

    def put_before_record(self, shard: int, pieces: Iterable[Piece]) -> None:
        """Let work of a paused shard wait before its first closing record."""
        waiting = self.waiting[shard]
        place = next(place for place, piece in enumerate(waiting) if closes(piece))
        for offset, piece in enumerate(pieces):
            waiting.insert(place + offset, piece)

    def put(self, shard: int, piece: Piece) -> list[int]:
        """Enqueue work of a shard behind what waits; returns the tasks to wake."""
        if self.table.paused[shard]:
            self.waiting[shard].append(piece)
            return []
        return self._put(int(self.table.owner[shard]), piece)

    def hold(self, shard: int) -> None:
        """Stop routing a shard; what waits in the queue of its task stays there."""
        self.table = self.table.pause(shard)
        self.waiting[shard] = deque()

    def mix(self, shard: int) -> None:
        """Note that the state records that wait for a paused shard meet partials of both sides of an event time."""
        self.waiting[shard] = deque(map(mixed, self.waiting[shard]))

    def put_back(self, shard: int, pieces: Iterable[Piece]) -> None:
        """Return rows to the waiting rows of a paused shard, before the later ones."""
        self.waiting[shard].extendleft(reversed([*pieces]))

    def check_move(self, shard: int, target: int) -> None:
        """Refuse a move that cannot begin.

        Raises
        ------
        MoveRefused
            If the shard does not exist or moves already, or `target` is no active task.
        """
        if not 0 <= shard < self.space.shards:
            raise MoveRefused(f"shard {shard} does not exist: the shards are 0 to {self.space.shards - 1}")
        if self.table.paused[shard]:
            raise MoveRefused(f"shard {shard} is moving already: wait until it has arrived")
        task = self.tasks.get(target)
        if task is None or task.status is not TaskStatus.ACTIVE:
            active = sorted(t.number for t in self.tasks.values() if t.status is TaskStatus.ACTIVE)
            raise MoveRefused(f"task {target} cannot take shard {shard}: the executor's active tasks are {active}")

    def backlog(self) -> np.ndarray:
        """Return the rows of each shard that wait for a task or for the end of a move, ``int64``."""
        rows = np.zeros(self.space.shards, dtype=np.int64)
        for task in self.tasks.values():
            for piece in task.queue.pieces:
                if piece.block.record is None:
                    rows += piece.rows_by_shard(self.space)
        for shard, pieces in self.waiting.items():
            rows[shard] += sum(piece.length for piece in pieces if piece.block.record is None)
        return rows

    def in_flight(self) -> np.ndarray:
        """Return the rows of each shard that are in flight: tasks have taken and not settled them, ``int64``."""
        rows = np.zeros(self.space.shards, dtype=np.int64)
        for task in self.tasks.values():
            for work in task.in_flight.values():
                if work.record is None:
                    rows += work.rows_by_shard(self.space)
        return rows

    @property
    def record_rows(self) -> int:
        """The rows of state records that are not settled, one for each shard."""
        queued = [piece for task in self.tasks.values() for piece in task.queue.pieces]
        queued += [piece for pieces in self.waiting.values() for piece in pieces]
        taken = sum(w.rows for task in self.tasks.values() for w in task.in_flight.values() if w.record is not None)
        return taken + sum(piece.length for piece in queued if piece.block.record is not None)

    @property
    def pending_bytes(self) -> int:
        """Bytes in the pending queues of all remote tasks."""
        return sum(task.pending.nbytes for task in self.tasks.values() if task.pending is not None)
