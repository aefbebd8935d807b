"""Errors of repeated work are all counted, and few are written out."""

from __future__ import annotations

import logging

import pytest

from dask_elastic.runtime.transport.error_log import KINDS, SECONDS, ErrorLog


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def log(clock):
    return ErrorLog(logging.getLogger("dask_elastic.node"), clock)


def note(log, error, what="upkeep"):
    try:
        raise error
    except Exception as raised:
        log.note(what, raised)


def test_error_that_comes_in_every_round_is_logged_once_and_counted(log, clock, caplog):
    for number in range(240):
        note(log, RuntimeError(f"no thread {number}"))
        clock.now += SECONDS / 60
        log.settle()
    first, *others = caplog.records
    assert (first.getMessage(), str(first.exc_info[1])) == ("upkeep", "no thread 0")
    assert [record.exc_info for record in others] == [None] * 4
    log.settle(ends=True)
    log.settle(ends=True)
    assert len(caplog.records) == 5
    assert sum(record.args[1] for record in others) == 239
    assert others[-1].getMessage() == (
        f"upkeep: the same error 60 times more in {SECONDS:.0f} s, at last RuntimeError: no thread 239"
    )


def test_errors_of_other_types_lines_and_work_are_logged_with_their_traceback(log, caplog):
    note(log, RuntimeError("1"))
    note(log, OSError("2"))
    note(log, OSError("3"), "reports")
    try:
        raise RuntimeError("4")
    except RuntimeError as error:
        log.note("upkeep", error)
    assert [str(record.exc_info[1]) for record in caplog.records] == ["1", "2", "3", "4"]


def test_rest_is_counted_when_the_error_stops_or_the_loop_ends(log, clock, caplog):
    for _ in range(3):
        note(log, OSError("full"))
    log.settle()
    assert len(caplog.records) == 1
    clock.now += SECONDS
    log.settle()
    assert "2 times more" in caplog.messages[-1]
    note(log, OSError("full"))
    log.settle(ends=True)
    assert "1 times more" in caplog.messages[-1]


def test_error_after_a_pause_is_logged_with_its_traceback_again(log, clock, caplog):
    note(log, OSError("full"))
    clock.now += SECONDS
    log.settle()
    note(log, OSError("full"))
    assert [record.exc_info is None for record in caplog.records] == [False, False]


def send():
    raise OSError("closed")


def send_reply():
    send()


def send_credit():
    send()


def test_errors_of_one_library_line_are_logged_for_each_caller(log, caplog):
    for _ in range(2):
        for call in (send_reply, send_credit):
            try:
                call()
            except OSError as error:
                log.note("upkeep", error)
    assert [record.exc_info is not None for record in caplog.records] == [True, True]
    log.settle(ends=True)
    assert [message.split(" in ")[0] for message in caplog.messages[2:]] == ["upkeep: the same error 1 times more"] * 2


def test_errors_with_other_causes_are_logged_with_their_traceback(log, caplog):
    def fail(before, *, shown):
        try:
            raise before
        except Exception as error:
            if shown:
                raise RuntimeError("not done") from error
            raise RuntimeError("not done") from None

    for before, shown in ((OSError(), True), (ValueError(), True), (OSError(), False), (ValueError(), False)):
        try:
            fail(before, shown=shown)
        except RuntimeError as error:
            log.note("upkeep", error)
    assert len(caplog.records) == 3
    for inner in (OSError(), KeyError()):
        note(log, ExceptionGroup("all", [inner]))
    assert len(caplog.records) == 5


def test_recursions_of_any_depth_are_one_kind(log, caplog):
    def descend(depth):
        if depth == 0:
            raise ValueError("the end")
        descend(depth - 1)

    for depth in range(1, 50):
        try:
            descend(depth)
        except ValueError as error:
            log.note("upkeep", error)
    assert len(caplog.records) == 1


def test_errors_that_caused_each_other_are_logged(log, caplog):
    first, second = ValueError("1"), ValueError("2")
    first.__cause__, second.__cause__ = second, first
    for _ in range(2):
        note(log, first)
    assert len(caplog.records) == 1


def test_kinds_beyond_the_limit_are_counted_together(log, clock, caplog):
    for number in range(KINDS + 20):
        note(log, type(f"Error{number}", (Exception,), {})(number))
    assert len(caplog.records) == KINDS
    clock.now += SECONDS
    log.settle()
    *_, last = caplog.messages
    assert last == f"upkeep: errors of other kinds 20 times in 60 s, at last Error{KINDS + 19}: {KINDS + 19}"
    assert len(caplog.records) == KINDS + 1
    note(log, OSError("new"))
    assert caplog.records[-1].exc_info is not None


def test_first_error_of_some_work_is_logged_however_many_kinds_of_errors_others_have(log, clock, caplog):
    for number in range(KINDS + 20):
        note(log, type(f"Error{number}", (Exception,), {})(number))
    log.note("report of job 'b'", OSError("disk full"))
    last = caplog.records[-1]
    assert (last.getMessage(), last.exc_info is not None) == ("report of job 'b'", True)
    log.note("report of job 'b'", KeyError("another kind"))
    assert caplog.records[-1] is last
    clock.now += SECONDS
    log.settle()
    counted = "report of job 'b': errors of other kinds 1 times in 60 s, at last KeyError: 'another kind'"
    assert counted in caplog.messages
