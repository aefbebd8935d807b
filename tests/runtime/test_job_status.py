from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_elastic.runtime.protocol.job_status import ENDED, TABLE, JobEvent, Status, next_status
from dask_elastic.vocab.errors import ProtocolError


@pytest.mark.parametrize("status", Status)
@pytest.mark.parametrize("event", JobEvent)
def test_job_status_follows_table_and_illegal_event_raises(status, event):
    if (status, event) in TABLE:
        assert next_status("flights", status, event) is TABLE[status, event]
        return
    with pytest.raises(ProtocolError, match=r"job 'flights': .* is illegal in status"):
        next_status("flights", status, event)


@given(st.data())
def test_any_legal_sequence_ends_and_never_returns_to_starting(data):
    status = Status.STARTING
    for _ in range(10):
        if status in ENDED:
            break
        event = data.draw(st.sampled_from([event for known, event in TABLE if known is status]))
        status = next_status("flights", status, event)
        assert status is not Status.STARTING
    assert not [event for known, event in TABLE if known in ENDED]


@pytest.mark.parametrize("status", [Status.STARTING, Status.RUNNING, Status.DRAINING])
def test_live_job_can_be_stopped_and_can_fail(status):
    assert TABLE[status, JobEvent.STOP_REQUESTED] is Status.STOPPED
    assert TABLE[status, JobEvent.ERROR] is Status.FAILED
