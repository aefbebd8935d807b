"""Invalid commands and lookups are refused with the valid names, and the job continues."""

from __future__ import annotations

from decimal import Decimal

import pyarrow as pa
import pytest
from counting_jobs import RUN, counting_rows

import dask_elastic as de
from dask_elastic.vocab import errors


def test_unknown_job_or_operator_error_lists_known_ones(client, held):
    with pytest.raises(errors.UnknownJob, match=r"no job 'hold'.*\['held'\]"):
        de.job("hold", client)
    with pytest.raises(errors.UnknownOperator, match=r"'cont'.*\['counted'\]"):
        held.state("cont").to_arrow()
    with pytest.raises(errors.UnknownOperator, match=r"'cont'.*\['counted'\]"):
        held.set_cores("cont", 2)
    with pytest.raises(errors.UnknownOperator, match=r"'rows' has the executors 0|no stateful operator 'rows'"):
        held.move_shard("rows", 0, 0)
    with pytest.raises(errors.UnknownOperator, match=r"executors 0 to \d, not 77"):
        held.set_cores("counted", 2, executor=77)
    with pytest.raises(errors.UnknownOperator, match=r"no sink 'in'.*\['out'\]"):
        held.collect("in")
    with pytest.raises(errors.UnknownOperator, match=r"no pushed source 'row'.*\['rows'\]"):
        held.send(pa.table({"k": [1]}), "row")
    with pytest.raises(errors.UnknownOperator, match="no operator 'cont'"):
        held.dead_letters("cont")
    assert held.status == "running"


def test_wrong_commands_are_refused_and_leave_job_running(client, held):
    with pytest.raises(errors.PlanningError, match="at least one core"):
        held.set_cores("counted", 0)
    with pytest.raises(errors.PlanningError, match="is no node of job 'held'"):
        held.set_cores("counted", {"tcp://nowhere:1": 1})
    with pytest.raises(errors.PlanningError, match="at least one core"):
        held.set_cores("counted", {held.assignment()["home"][0]: 0})
    with pytest.raises(errors.MoveRefused, match="shard 256 does not exist"):
        held.move_shard("counted", 256, 0)
    with pytest.raises(errors.MoveRefused, match="executor='0': give a whole number"):
        held.set_cores("counted", 1, executor="0")
    with pytest.raises(errors.MoveRefused, match="shard='0': give a whole number"):
        held.move_shard("counted", "0", 0)
    with pytest.raises(errors.MoveRefused, match=r"task=0\.5: give a whole number"):
        held.move_shard("counted", 0, 0.5)
    with pytest.raises(errors.MoveRefused, match="task 99 cannot take"):
        held.move_shard("counted", 0, 99)
    with pytest.raises(TypeError, match="PyCapsule interface, not list"):
        held.send([1])
    held.send(pa.table({"k": [1, 1]}))
    held.end_of_input()
    held.wait(**RUN)
    assert held.state("counted").get(1) == {"k": 1, "n": 2}
    with pytest.warns(UserWarning, match="job 'held' has finished: its cores do not change"):
        held.set_cores("counted", 1)
    with pytest.warns(UserWarning, match="job 'held' has finished: its shards do not change"):
        held.move_shard("counted", 0, 0)
    with pytest.raises(errors.UnknownOperator, match="no stateful operator 'cont'"):
        held.set_cores("cont", 1)


def test_cores_above_slots_are_shared_and_reported_as_oversubscribed(client, numbers, held):
    job = de.submit(counting_rows(numbers, executors=9), client)
    job.wait(**RUN)
    assert "oversubscribed" in repr(job)
    assert "oversubscribed" in job._repr_html_()
    assert job.state("counted").to_pandas()["n"].tolist() == [100] * 10
    assert "oversubscribed" not in repr(held)
    slots = sum(client.nthreads().values())
    with pytest.raises(errors.PlanningError, match=f"which are {slots}. Give at most {slots}"):
        held.set_cores("counted", slots + 1)
    held.set_cores("counted", slots)
    assert "oversubscribed" in repr(held)


def test_lookup_with_wrong_key_type_is_refused_and_leaves_job_running(client, held):
    held.send(pa.table({"k": [1]}))
    held.end_of_input()
    held.wait(**RUN)
    state = held.state("counted")
    with pytest.raises(errors.StateError, match="key column 'k' of 'counted' is int64, which 'one' is not"):
        state.get("one")
    with pytest.raises(errors.StateError, match="one value for each"):
        state.get((1, 2))
    assert state.get(Decimal(1))["n"] == 1


def test_send_to_job_without_push_source_is_refused(client, numbers):
    job = de.submit(counting_rows(numbers), client)
    with pytest.raises(errors.UnknownOperator, match=r"job 'count' has no sources\.Push: nothing can be sent to it"):
        job.send(numbers)
    job.wait(**RUN)
