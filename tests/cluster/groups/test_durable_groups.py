"""Key groups that have moved survive checkpoints, savepoints and lost workers."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from counting_jobs import RUN
from distributed import Client

import dask_elastic as de
from dask_elastic.vocab.errors import MoveRefused, NodeLost, SubmitError, UnknownJob

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "durability"))
from followed_jobs import ROWS, Sender, assert_each_row_once, counted, expected, followed_pushes, newest

del sys.path[:2]

GROUPS = 16
KILLS = int(os.environ.get("HOME_KILLS", "2"))
"""How often a worker is killed while groups move, or afterwards; `make faults` kills more often."""


def durable(folder, executors=2, groups=GROUPS):
    """The topology of a job that follows the order of rows that are sent, and writes each."""
    return followed_pushes(folder, "durable-groups", executors, groups)


def owners(job):
    """The executor of each key group; nothing while the job restarts."""
    try:
        found = job.assignment()
    except (NodeLost, UnknownJob):
        return {}
    pairs = ((group, one) for one, own in zip(found["executor"], found["shards"], strict=True) for group in own)
    return dict(pairs)


def test_job_continues_from_a_savepoint_with_the_groups_where_they_were(client, wait_until, tmp_path):
    out, first = tmp_path / "out", tmp_path / "first"
    options = {"paradigm": "resource-centric", "checkpoint_interval": "1h"}
    job = de.submit(durable(out), client, checkpoint=first, **options)
    job.send(ROWS.slice(0, 8_000), wait=True)
    wait_until(lambda: sum(n for n, *_ in counted(job).values()) == 8_000, "the rows are processed")
    full = job.checkpoint()
    job.move_groups("followed", [0, 1], executor=1)
    job.move_groups("followed", [9], executor=0)
    moved = owners(job)
    moving_on = threading.Event()
    moving_on.set()

    def move_to_and_fro():
        moves = 0
        while moving_on.is_set() or moves % 2:
            job.move_groups("followed", [9], executor=(moves + 1) % 2)
            moves += 1
        return moves

    with ThreadPoolExecutor(1) as pool:
        moves = pool.submit(move_to_and_fro)
        try:
            assert [job.checkpoint() for _ in range(3)] == [full + 1, full + 2, full + 3], "none is given up"
        finally:
            moving_on.clear()
        assert moves.result() > 0
    assert owners(job) == moved
    job.send(ROWS.slice(8_000, 100), wait=True)
    job.stop(savepoint=tmp_path / "saved")
    assert newest(job) > full
    with pytest.raises(SubmitError, match="key groups that move"):
        de.resume(tmp_path / "saved", client, checkpoint=tmp_path / "other", paradigm="executor-centric")
    with pytest.raises(SubmitError, match=r"with 17 executors: .* has 16 key groups\. Choose executors= from 1 to 16"):
        de.resume(tmp_path / "saved", client, checkpoint=tmp_path / "other", topology=durable(out, 17, groups=32))
    again = de.resume(tmp_path / "saved", client, checkpoint=tmp_path / "second")
    assert owners(again) == moved
    assert counted(again) == expected(ROWS.slice(0, 8_100))
    again.move_groups("followed", [0, 15], executor=0)
    again.send(ROWS.slice(8_100, 5_000), wait=True)
    again.end_of_input()
    again.wait(**RUN)
    assert counted(again) == expected(ROWS.slice(0, 13_100))
    assert_each_row_once(out, ROWS.slice(0, 13_100))
    saved = de.read_state(tmp_path / "saved", "followed")
    assert {row["k"]: row["n"] for row in saved.to_pylist()} == {
        key: count for key, (count, *_) in expected(ROWS.slice(0, 8_100)).items()
    }


def test_job_continues_with_other_numbers_of_executors(client, wait_until, tmp_path):
    out, sent, options = tmp_path / "out", 0, {"checkpoint_interval": "1h"}

    def send(job, rows):
        nonlocal sent
        job.send(ROWS.slice(sent, rows), wait=True)
        sent += rows
        wait_until(lambda: sum(n for n, *_ in counted(job).values()) == sent, "the rows are processed")

    made = durable(out, executors=2)
    job = de.submit(made, client, checkpoint=tmp_path / "0", paradigm="resource-centric", **options)
    for number, executors in enumerate([5, 3, 3], start=1):
        send(job, 6_000)
        # All state is in files of a checkpoint before some of it moves, and leaves tombstones there.
        job.checkpoint()
        before = owners(job)
        for group in (0, 7, 15):
            job.move_groups("followed", [group], executor=(before[group] + 1) % 2)
        send(job, 50)
        moved = owners(job)
        job.stop(savepoint=tmp_path / f"saved-{number}")
        made = durable(out, executors=executors)
        job = de.resume(tmp_path / f"saved-{number}", client, checkpoint=tmp_path / str(number), topology=made)
        after = owners(job)
        sizes = np.bincount([*after.values()], minlength=executors)
        if number == 3:
            assert after == moved
        else:
            assert sizes.max() - sizes.min() <= 1
        assert counted(job) == expected(ROWS.slice(0, sent))
    send(job, 2_000)
    job.end_of_input()
    job.wait(**RUN)
    assert counted(job) == expected(ROWS.slice(0, sent))
    assert job.state("followed").to_pandas()["faults"].sum() == 0
    assert_each_row_once(out, ROWS.slice(0, sent))


def test_workers_that_are_killed_while_groups_move_or_afterwards_lose_no_row(small_cluster, wait_until, tmp_path):
    random = np.random.default_rng(KILLS)
    out = tmp_path / "out"
    with Client(small_cluster(n_workers=2, threads_per_worker=2), set_as_default=False) as client:
        options = {"checkpoint_interval": "300ms", "restart_attempts": 100, "paradigm": "resource-centric"}
        job = de.submit(durable(out, executors=4), client, checkpoint=tmp_path / "checkpoints", **options)

        def complete():
            number = newest(job)
            wait_until(lambda: newest(job) > number, "a checkpoint is complete")

        with Sender(job) as sender, ThreadPoolExecutor(1) as pool:
            for kill in range(KILLS):
                wait_until(lambda: len(client.nthreads()) == 2, "both workers run")
                complete()
                before = wait_until(lambda: found if len(found := owners(job)) == GROUPS else None, "all run")
                # The one with the fewest groups, so that there are some to move.
                target = int(np.argmin(np.bincount([*before.values()], minlength=4)))
                groups = [group for group, one in before.items() if one != target][:6]
                strategy = ("progressive", "synchronised")[kill // 2 % 2]
                moving = pool.submit(job.move_groups, "followed", groups, target, strategy)
                if kill % 2 == 0:
                    moving.result()
                    complete()
                    after = owners(job)
                else:
                    with contextlib.suppress(TimeoutError):
                        moving.exception(timeout=random.uniform(0.0, 0.05))
                [victim, *_] = random.permutation(sorted(client.nthreads()))
                os.kill(client.run(os.getpid)[victim], signal.SIGKILL)
                moving.exception()
                wait_until(lambda: victim not in client.nthreads(), "the scheduler sees the loss")  # noqa: B023
                if kill % 2 == 0:
                    again = wait_until(lambda: found if len(found := owners(job)) == GROUPS else None, "all run")
                    assert again == after
        job.end_of_input()
        job.wait(**RUN)
        rows = pa.concat_tables(sender.sent)
        assert counted(job) == expected(rows)
        assert_each_row_once(out, rows)


def homes(job):
    """The worker of each executor; nothing while the job restarts."""
    try:
        found = job.assignment()
    except (NodeLost, UnknownJob):
        return {}
    return dict(zip(found["executor"], found["home"], strict=True))


def test_job_that_lost_a_worker_has_one_executor_for_each_slot_that_it_finds(small_cluster, wait_until, tmp_path):
    out, slots = tmp_path / "out", 2
    with Client(small_cluster(n_workers=2, threads_per_worker=slots), set_as_default=False) as client:
        options = {"checkpoint_interval": "300ms", "restart_attempts": 100, "paradigm": "resource-centric"}
        job = de.submit(durable(out, executors=None), client, checkpoint=tmp_path / "checkpoints", **options)
        with Sender(job) as sender:
            placed = homes(job)
            for _ in range(2):
                assert len(placed) == slots * len({*placed.values()})
                wait_until(lambda: len(client.nthreads()) == 2, "both workers run")
                before = newest(job)
                wait_until(lambda: newest(job) > before, "a checkpoint is complete")  # noqa: B023
                # In the second restart there is usually only the worker that has replaced the first one.
                victim = min(placed.values())
                os.kill(client.run(os.getpid)[victim], signal.SIGKILL)
                placed = wait_until(
                    lambda: found if victim not in (found := homes(job)).values() else None,  # noqa: B023
                    "it runs elsewhere",
                )
            assert len(placed) == slots * len({*placed.values()})
        job.end_of_input()
        job.wait(**RUN)
        rows = pa.concat_tables(sender.sent)
        assert counted(job) == expected(rows)
        assert_each_row_once(out, rows)


def test_second_move_is_refused_while_groups_move(client, wait_until, tmp_path):
    blocked, begun = tmp_path / "blocked", tmp_path / "begun"
    blocked.touch()

    def wait(batch, state):
        import time

        begun.touch()
        while blocked.exists():
            time.sleep(0.01)
        state.set("n", state.get("n", default=0) + np.bincount(state.ordinals, minlength=len(state)))

    made = de.Topology("slow-groups")
    rows = made.source("rows", de.sources.Push(ROWS.schema))
    rows.key_by("k").compute(wait, name="followed", state={"n": pa.int64()}, executors=2, shards=GROUPS)
    job = de.submit(made, client, paradigm="resource-centric")
    job.send(ROWS.slice(0, 1_000), wait=True)
    wait_until(begun.exists, "a row is processed")
    there = next(group for group, one in owners(job).items() if one == 1)
    with ThreadPoolExecutor(1) as pool:
        moving = pool.submit(job.move_groups, "followed", [0, 1], 1)

        def refused():
            # It is refused in any case: it must not begin if it comes before the other one.
            with pytest.raises(MoveRefused) as caught:
                job.move_groups("followed", [there], 1)
            return "in progress" in str(caught.value)

        try:
            wait_until(refused, "the second one is refused")
        finally:
            blocked.unlink()
        assert moving.result().groups == 2
    job.end_of_input()
    job.wait(**RUN)
    assert job.state("followed").to_pandas()["n"].sum() == 1_000
