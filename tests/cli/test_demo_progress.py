from __future__ import annotations

import math

import pytest

from dask_elastic.cli.demo.course import WARM_UP, Course
from dask_elastic.cli.demo.happening import Happening
from dask_elastic.cli.demo.outage import LONGEST, LONGEST_REPLACEMENT, SETTLING, Outage
from dask_elastic.cli.demo.position import Position
from dask_elastic.cli.demo.second import Second
from dask_elastic.cli.demo.side_by_side import HEAD, line
from dask_elastic.cli.terminal.console import plain_text
from dask_elastic.vocab.identity import ExecutorId
from dask_elastic.vocab.snapshot import ExecutorSnapshot, JobSnapshot, NodeSnapshot, Snapshot

NODE = NodeSnapshot("tcp://a:1", "a", 8)
CORES = {("per_plane", 0): 2, ("per_route", 0): 3, ("per_route", 1): 1}


def snapshot(now, latency, name="elastic", cores=CORES, queue=0, generation=1, moves=5):
    executors = tuple(
        ExecutorSnapshot(ExecutorId(*key), 0, {0: count}, arrival_rate=1.0, service_rate=None, queue=queue, moves=moves)
        for key, count in cores.items()
    )
    p99 = None if latency is None else 2 * latency
    return Snapshot(now, (NODE,), (JobSnapshot(name, generation, executors, 0.1, latency=latency, latency_p99=p99),))


def course(*latencies, feed_seconds=100.0, step=1.0):
    made = Course("elastic", 0.1, feed_seconds)
    for number, latency in enumerate(latencies):
        made.add(snapshot(1_000.0 + number * step, latency))
    return made


def test_second_has_cores_of_each_executor():
    [job] = snapshot(1.0, 0.05).jobs
    second = Second.of(job, 3.0)
    assert second == Second(3.0, 0.05, 0.1, {"per_plane": (2,), "per_route": (3, 1)}, 15)
    assert second.total_cores == 6


def test_idle_job_has_no_second():
    [job] = snapshot(1.0, None).jobs
    assert Second.of(job, 3.0) is None


def test_second_in_which_rows_wait_and_none_is_processed_misses_the_target():
    made = course(*[0.05] * 5)
    made.add(snapshot(1_005.0, None, queue=7))
    assert made.seconds[-1].mean == math.inf
    assert made.share == 0.5
    assert "∞" in plain_text(line(5.0, Course("static", 0.1, 100.0), made, {"elastic": made.seconds[-1]}, ""))


def test_share_counts_seconds_after_warm_up_only():
    warm = [9.0] * int(WARM_UP)
    assert course(*warm).share is None
    assert course(*warm, 0.1, 0.2, 0.05, 0.0).share == 0.75


def test_share_counts_no_seconds_after_the_last_row_was_due():
    assert course(*[0.05] * 6, *[9.0] * 10, feed_seconds=6.0).share == 1.0


def test_share_counts_no_seconds_of_an_outage_and_of_the_settling_after_it():
    made = course(*[0.05] * 6, *[9.0] * 4, *[0.05] * 5, feed_seconds=12.0)
    assert made.share == 0.5
    made.left_out = (1_006.0, 1_010.0)
    assert (made.share, len(made.judged)) == (1.0, 4)
    made.pause = 2.0
    assert len(made.judged) == 6


def test_restarted_job_keeps_its_moves_and_holds_no_cores_between_generations():
    made = course(0.05, 0.05)
    made.add(snapshot(1_001.5, 0.05, moves=8))
    made.add(snapshot(1_005.0, 0.05, generation=2, moves=1))
    made.add(snapshot(1_006.0, 0.05, generation=2, moves=2))
    assert made.moves == 3 * (8 + 2)
    assert made.core_seconds == 6 * (1.5 + 1.0)


def test_outage_lasts_until_both_jobs_process_rows_in_a_later_generation():
    outage = Outage(at_row=100)
    assert not outage.is_due(99)
    assert outage.is_due(100)
    assert (outage.left_out, outage.pause) == (None, 0.0)
    outage.begin(50.0, {"static": 1, "elastic": 4})
    assert not outage.is_due(100)
    assert not outage.note("elastic", 51.0, generation=4, works=True)
    assert not outage.note("elastic", 52.0, generation=5, works=False)
    assert outage.note("elastic", 53.0, generation=5, works=True)
    assert not outage.note("elastic", 54.0, generation=5, works=True)
    assert (outage.lasting, outage.left_out) == ({"static"}, (50.0, math.inf))
    assert outage.note("static", 58.0, generation=2, works=True)
    assert outage.recovered == {"elastic": 3.0, "static": 8.0}
    assert (outage.left_out, outage.pause) == ((50.0, 58.0 + LONGEST_REPLACEMENT + SETTLING), 3.0)


@pytest.mark.parametrize(("replaced", "until"), [(55.0, 58.0), (61.0, 61.0), (99.0, 58.0 + LONGEST_REPLACEMENT)])
def test_seconds_until_the_worker_is_replaced_are_not_judged(replaced, until):
    outage = Outage(at_row=100)
    assert not outage.note_replaced(40.0)
    outage.begin(50.0, {"static": 1, "elastic": 1})
    assert outage.note("elastic", 52.0, generation=2, works=True)
    assert outage.note("static", 58.0, generation=2, works=True)
    assert outage.note_replaced(replaced)
    assert not outage.note_replaced(replaced + 1.0)
    assert outage.left_out == (50.0, until + SETTLING)


def test_outage_is_too_long_only_while_a_job_has_not_recovered():
    outage = Outage(at_row=100)
    assert not outage.is_too_long(1e9)
    outage.begin(50.0, {"elastic": 1})
    assert not outage.is_too_long(50.0 + LONGEST)
    assert outage.is_too_long(51.0 + LONGEST)
    outage.note("elastic", 60.0, generation=2, works=True)
    assert not outage.is_too_long(51.0 + LONGEST)


def test_position_goes_on_from_the_checkpoint_of_a_restart():
    position = Position()
    assert [position.of(now, 1, rows, 2.0) for now, rows in ((1.0, 100), (2.0, 200), (3.0, 300))] == [100, 200, 300]
    assert [position.of(5.0, 2, 0, 2.0), position.of(6.0, 2, 150, 5.5)] == [200, 350]
    assert position.of(9.0, 3, 10, None) == 10


def test_course_begins_with_the_first_measured_row():
    made = course(None, None, 0.05, 0.05)
    assert [second.at for second in made.seconds] == [0.0, 1.0]
    assert made.core_seconds == 6.0


def test_two_snapshots_of_one_second_count_once():
    made = course(*[0.05] * 9, step=0.5)
    assert [second.at for second in made.seconds] == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert made.core_seconds == 6 * 4.0


def test_seconds_measured_early_and_late_are_different_seconds():
    made = Course("elastic", 0.1, 100.0)
    for now in (0.05, 1.04, 2.06, 3.05):
        made.add(snapshot(now, 0.05))
    assert len(made.seconds) == 4


def test_snapshots_that_are_read_again_and_those_of_other_jobs_are_ignored():
    made = course(0.05, 0.05)
    assert made.add(snapshot(1_000.5, 0.05)) is None
    assert made.add(snapshot(1_005.0, 0.05, name="other")) is None
    assert len(made.seconds) == 2


def test_course_has_mean_and_median_p99_of_judged_seconds():
    made = course(*[9.0] * 4, 0.1, 0.1, 0.4)
    assert made.mean == pytest.approx(0.2)
    assert made.p99 == pytest.approx(0.2)


def test_line_shows_both_jobs_the_target_and_what_happens():
    static, elastic = Course("static", 0.2, 100.0), course(*[0.05] * 6)
    elastic.target = 0.2
    ones = Second(5.0, 1.5, 2.5, {"per_plane": (1, 1), "per_route": (1, 1)})
    shown = {"static": ones, "elastic": elastic.seconds[-1]}
    text = plain_text(line(5.0, static, elastic, shown, "the hot routes change now"))
    fields = [part.split() for part in text.split("│")]
    assert fields == [
        ["5", "200"],
        ["1,500", "2,500", "–", "1+1", "1+1"],
        ["50", "100", "100%", "2", "3+1"],
        ["the", "hot", "routes", "change", "now"],
    ]
    places = [[at for at, sign in enumerate(row) if sign == "│"] for row in (*plain_text(*HEAD).splitlines(), text)]
    assert places[0] == places[1] == places[2]


def test_line_of_restarting_job_has_no_latencies():
    static, elastic = Course("static", 0.1, 100.0), course(*[0.05] * 6)
    text = plain_text(line(9.0, static, elastic, {"elastic": elastic.seconds[-1]}, "kill -9", {"static"}))
    fields = [part.split() for part in text.split("│")]
    assert fields[1:] == [["restarting", "–"], ["50", "100", "100%", "2", "3+1"], ["kill", "-9"]]
    assert [at for at, sign in enumerate(text) if sign == "│"] == [
        at for at, sign in enumerate(plain_text(*HEAD).splitlines()[0]) if sign == "│"
    ]


def test_line_of_ended_job_keeps_its_share():
    static, elastic = Course("static", 0.1, 100.0), course(*[0.05] * 6)
    text = plain_text(line(9.0, static, elastic, {}, ""))
    assert text.split("│")[2].split() == ["100%"]


def test_happening_says_once_that_the_hot_routes_change():
    happening = Happening([10, 20, 30], [False, True, True])
    texts = [happening.month(rows) for rows in (0, 9, 10, 19, 25, 99)]
    assert texts == [
        "January: no hot routes",
        "",
        "February: the hot routes change now",
        "",
        "March: the hot routes change now",
        "",
    ]


def test_happening_does_not_announce_a_month_again_after_a_restart():
    happening = Happening([10, 20], [False, True])
    assert [happening.month(rows) for rows in (12, 8, 13)] == ["February: the hot routes change now", "", ""]


def test_happening_shows_changed_cores():
    happening = Happening([10], [False])
    found = [happening.changes({"per_plane": (2,), "per_route": cores}) for cores in ((3, 1), (3, 2), (3, 2))]
    assert found == ["", "per_route 3+1 → 3+2", ""]
