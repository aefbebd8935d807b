from __future__ import annotations

import pytest

from dask_elastic.executor.task import Task
from dask_elastic.executor.task_status import TABLE, TaskEvent, TaskStatus
from dask_elastic.vocab.errors import ProtocolError


def a_task(status):
    task = Task(3, node=1, at_home=False)
    task.status = status
    return task


@pytest.mark.parametrize("status", TaskStatus)
@pytest.mark.parametrize("event", TaskEvent)
def test_task_status_follows_table_and_illegal_event_changes_nothing(status, event):
    task = a_task(status)
    if (status, event) in TABLE:
        task.handle(event)
        assert task.status is TABLE[status, event]
        return
    with pytest.raises(ProtocolError, match=r"task 3: .* is illegal in status"):
        task.handle(event)
    assert task.status is status


def test_task_that_has_ended_or_is_lost_takes_no_event():
    assert {status for status, _ in TABLE} == {*TaskStatus} - {TaskStatus.ENDED, TaskStatus.LOST}
    assert {*TABLE.values()} == {*TaskStatus} - {TaskStatus.ACTIVE}
