"""Key groups move between executors while rows arrive: state, order, event time, credit and outputs are exact."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pandas as pd
import pytest
from counting_jobs import RUN
from numbered_jobs import KEYS, Rows, credit_in_use, event_times, numbered_topology

import dask_elastic as de
from dask_elastic.vocab.errors import JobEnded, MoveRefused, PlanningError, SubmitError, UnknownOperator

GROUPS = 16
STRATEGIES = ("progressive", "synchronised")


def topology(name):
    """The topology of a job with three and two executors."""
    return numbered_topology(name, 3, 2, GROUPS)


def owners(job, operator):
    """The executor of each key group."""
    found = job.assignment()
    found = found[found["operator"] == operator]
    pairs = (
        (group, executor) for executor, own in zip(found["executor"], found["shards"], strict=True) for group in own
    )
    return dict(pairs)


def test_groups_move_to_and_fro_while_rows_arrive(client, wait_until):
    job = de.submit(topology("exchanged"), client, paradigm="resource-centric", watermark_interval="10ms")
    rows, random = Rows(job), np.random.default_rng(5)
    with ThreadPoolExecutor(1) as threads:
        sending = threads.submit(rows.run)
        came, before_pause = 0, Counter()
        try:
            for turn in range(6):
                operator, executors = ("first", 3) if turn % 2 == 0 else ("second", 2)
                target = int(random.integers(executors))
                before = owners(job, operator)
                away = [group for group, executor in before.items() if executor != target]
                chosen = [int(group) for group in random.choice(away, min(5, len(away)), replace=False)]
                sent = int(rows.sent[5])
                moved = job.move_groups(operator, chosen, target, STRATEGIES[turn // 2 % 2])
                assert moved.groups == len(chosen)
                before_pause[STRATEGIES[turn // 2 % 2]] += moved.nbytes - moved.paused_bytes
                came += len(chosen)
                assert owners(job, operator) == before | dict.fromkeys(chosen, target)
                wait_until(lambda: sending.done() or rows.sent[5] > sent, "rows are sent")  # noqa: B023
                found = job.state(operator).to_pandas()
                assert found["k"].is_unique
        finally:
            rows.stops = True
        sending.result()
    # Only progressive moves copy state before rows wait.
    assert before_pause["progressive"] > 0 == before_pause["synchronised"]
    rows.send()
    reached = pd.Timestamp(rows.newest - 1, unit="us")
    wait_until(lambda: (event_times(job, "second") >= reached).all(), "event time passes all executors")
    assert job.state("second").get(5)["n"] == rows.sent[5]
    job.end_of_input()
    job.wait(**RUN)
    counted = job.metrics()[["moves", "moves_across"]].sum()
    assert counted["moves"] == came
    assert 0 < counted["moves_across"] <= came
    rows.assert_followed()
    wait_until(lambda: set(credit_in_use(client, job.name)) == {(0, 0)}, "all credit has come back")
    assert len(job.state("first").to_dask()) == KEYS


def test_state_of_a_job_that_ends_while_state_is_copied_has_each_key_once(client, wait_until):
    def hold():
        import threading

        from dask_elastic.executor.groups.outgoing_groups import OutgoingGroups

        real, copied, goes_on = OutgoingGroups.round, threading.Event(), threading.Event()

        def held(self):
            yield from real(self)
            copied.set()
            goes_on.wait(240)

        held.real, held.copied, held.goes_on = real, copied, goes_on
        OutgoingGroups.round = held

    def copied():
        from dask_elastic.executor.groups.outgoing_groups import OutgoingGroups

        return OutgoingGroups.round.copied.is_set()

    def release():
        from dask_elastic.executor.groups.outgoing_groups import OutgoingGroups

        OutgoingGroups.round.goes_on.set()
        OutgoingGroups.round = OutgoingGroups.round.real

    job = de.submit(topology("ending"), client, paradigm="resource-centric")
    rows = Rows(job)
    rows.send()
    wait_until(lambda: job.state("second").to_pandas()["n"].sum() == 500, "all rows are processed")
    client.run(hold)
    with ThreadPoolExecutor(1) as threads:
        try:
            leaving = [group for group, executor in owners(job, "second").items() if executor == 0]
            moving = threads.submit(job.move_groups, "second", leaving, 1, "progressive")
            wait_until(lambda: any(client.run(copied).values()), "state is copied")
            job.end_of_input()
            job.wait(**RUN)
            with pytest.raises(JobEnded, match="while key groups moved"):
                moving.result(240)
        finally:
            client.run(release)
    assert job.state("second").to_pandas()["k"].is_unique
    assert job.state("second").to_dask()["k"].compute().is_unique
    rows.assert_followed()


def test_moves_that_do_not_fit_are_refused_by_name_and_change_nothing(client):
    job = de.submit(topology("refusing"), client, paradigm="resource-centric")
    before = owners(job, "first")
    for operator, groups, executor, error, text in (
        ("third", [0], 1, UnknownOperator, "job 'refusing' has no operator 'third'"),
        ("first", [GROUPS], 1, MoveRefused, f"'first' of job 'refusing': group {GROUPS} does not exist"),
        ("first", [0], 3, MoveRefused, "executors are 0 to 2"),
        ("first", [0], 0, MoveRefused, "belongs to executor 0 already"),
        ("first", [], 1, MoveRefused, "no group"),
        ("first", 0, 1, MoveRefused, r"'first': groups=0: give the numbers of its groups, as \[0, 1\]"),
        ("first", [0.5], 1, MoveRefused, r"groups=\[0.5\]: give the numbers"),
        ("first", [0], "tcp://a:1", MoveRefused, "executor='tcp://a:1': give the number of an executor"),
    ):
        with pytest.raises(error, match=text):
            job.move_groups(operator, groups, executor)
    with pytest.raises(MoveRefused, match="'smoothly'"):
        job.move_groups("first", [0], 1, migration="smoothly")
    with pytest.raises(PlanningError, match="resource-centric"):
        job.set_cores("first", 2)
    with pytest.raises(PlanningError, match="resource-centric"):
        job.move_executor("first", 0, sorted(client.nthreads())[0])
    with pytest.raises(PlanningError, match="to_arrow"):
        job.state("first").to_dask()
    assert owners(job, "first") == before
    job.end_of_input()
    job.wait(**RUN)


def test_job_of_another_paradigm_refuses_moves_and_strategies(client):
    job = de.submit(topology("fixed"), client)
    with pytest.raises(MoveRefused, match=r"'executor-centric'.*resource-centric"):
        job.move_groups("first", [0], 1)
    job.stop()
    with pytest.raises(SubmitError, match="resource-centric"):
        de.submit(topology("fixed"), client, migration="progressive")
    with pytest.raises(SubmitError, match="progressive"):
        de.submit(topology("fixed"), client, migration="smooth", paradigm="resource-centric")
    with pytest.raises(SubmitError, match="one core each"):
        de.submit(topology("fixed"), client, cores={"first": 2}, paradigm="resource-centric")
