"""Life of a task as a table of (status, event) -> status, as the task's home sees it."""

from __future__ import annotations

from enum import Enum

from dask_elastic.vocab.errors import ProtocolError


class TaskStatus(Enum):
    """Status of a task.

    Whether a task sleeps is no status: an active one sleeps whenever its queue is empty, a draining one as well.
    """

    ACTIVE = "active"
    DRAINING = "draining"
    STOPPING = "stopping"
    ENDED = "ended"
    LOST = "lost"


class TaskEvent(Enum):
    """An event in the life of a task."""

    CORE_RETURNED = "its core is to be returned"
    EMPTIED = "its last shard has left"
    THREAD_ENDED = "its thread has ended"
    NODE_LOST = "its node is lost"


TABLE: dict[tuple[TaskStatus, TaskEvent], TaskStatus] = {
    (TaskStatus.ACTIVE, TaskEvent.CORE_RETURNED): TaskStatus.DRAINING,
    (TaskStatus.DRAINING, TaskEvent.EMPTIED): TaskStatus.STOPPING,
    (TaskStatus.STOPPING, TaskEvent.THREAD_ENDED): TaskStatus.ENDED,
    (TaskStatus.ACTIVE, TaskEvent.NODE_LOST): TaskStatus.LOST,
    (TaskStatus.DRAINING, TaskEvent.NODE_LOST): TaskStatus.LOST,
    (TaskStatus.STOPPING, TaskEvent.NODE_LOST): TaskStatus.LOST,
}
"""Only an active task is given shards; a stopping one owns none and has been sent its last item. An event that is not
listed is illegal and changes nothing."""


def next_status(task: int, status: TaskStatus, event: TaskEvent) -> TaskStatus:
    """Return the status of a task after an event.

    Parameters
    ----------
    task : int
        The task's number, for the error.
    status : TaskStatus
        Its status before.
    event : TaskEvent
        What happened.

    Returns
    -------
    TaskStatus
        Its status from now on.

    Raises
    ------
    ProtocolError
        If the event is illegal in this status.

    Examples
    --------
    >>> next_status(3, TaskStatus.ACTIVE, TaskEvent.CORE_RETURNED)
    <TaskStatus.DRAINING: 'draining'>
    """
    try:
        return TABLE[status, event]
    except KeyError:
        raise ProtocolError(f"task {task}: {event.value!r} is illegal in status {status.value!r}") from None
