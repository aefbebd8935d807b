from __future__ import annotations

import io
import re
import sys

import pytest

from dask_elastic.cli.command import help_text
from dask_elastic.cli.terminal.console import live_view, plain_text, show
from dask_elastic.cli.terminal.console_table import ConsoleTable
from dask_elastic.cli.terminal.progress_bar import progress_bar

STYLE = re.compile(r"\x1b\[[0-9;]*m")
COLOUR = re.compile(r"\x1b\[[0-9;]*3[0-7][0-9;]*m")


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def stream(monkeypatch):
    """Replace standard output and standard error by a terminal, or by another stream; return it."""
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "COLUMNS", "LINES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")

    def replaced(by):
        monkeypatch.setattr(sys, "stdout", by)
        monkeypatch.setattr(sys, "stderr", by)
        return by

    return replaced


@pytest.fixture
def terminal(stream, monkeypatch):
    """Return a function that makes a terminal of some size the standard output."""

    def sized(columns, rows=24):
        made = stream(Terminal())
        monkeypatch.setenv("COLUMNS", str(columns))
        monkeypatch.setenv("LINES", str(rows))
        return made

    return sized


JOBS = ConsoleTable(
    ["job", "where", "rows", "moves"],
    [[("a", "bold"), "tcp://b:1", "1", "2"], ["longer[x]", "c", ("1,000", "red"), "30"]],
    left=2,
    optional=["moves", "where"],
)


def test_plain_text_of_table_aligns_columns():
    assert plain_text(JOBS).splitlines() == [
        "job        where       rows  moves",
        "a          tcp://b:1      1      2",
        "longer[x]  c          1,000     30",
    ]


def test_plain_text_has_whole_values_whatever_the_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "20")
    monkeypatch.setenv("FORCE_COLOR", "1")
    value = "x" * 30_000 + " end"
    assert plain_text("first", ConsoleTable(["value"], [[value]])).splitlines() == ["first", "value", value]


def test_output_outside_terminal_is_plain_text(stream):
    output = stream(io.StringIO())
    show("head", JOBS, ("a warning", "bold red"))
    assert output.getvalue() == f"head\n{plain_text(JOBS)}\na warning\n"


@pytest.mark.parametrize("columns", [40, 80, 200])
def test_table_has_the_full_width_of_the_terminal(terminal, columns):
    output = terminal(columns)
    show(JOBS)
    lines = STYLE.sub("", output.getvalue()).splitlines()
    assert lines[1] == "─" * columns
    assert {len(line.rstrip()) for line in (lines[0], *lines[2:])} == {columns}
    assert lines[3].split() == ["longer[x]", "c", "1,000", "30"]


def test_narrow_terminal_shows_fewer_columns_and_names_the_others(terminal):
    output = terminal(30)
    show(JOBS)
    lines = STYLE.sub("", output.getvalue()).splitlines()
    assert lines[0].split() == ["job", "where", "rows"]
    assert " ".join(map(str.strip, lines[-2:])) == "Not shown in 30 columns: moves."


def test_long_text_continues_on_the_next_line_of_the_terminal(terminal):
    output = terminal(20)
    show(ConsoleTable(["word", "n"], [["x" * 50, "7"]]))
    shown = STYLE.sub("", output.getvalue())
    assert shown.count("x") == 50
    assert max(map(len, shown.splitlines())) <= 20


def test_terminal_has_colour_unless_no_color_is_set(terminal, monkeypatch):
    output = terminal(80)
    show(JOBS)
    assert COLOUR.search(output.getvalue())
    monkeypatch.setenv("NO_COLOR", "1")
    output = terminal(80)
    show(JOBS)
    assert not COLOUR.search(output.getvalue())
    assert "longer[x]" in output.getvalue()


def test_live_view_outside_terminal_prints_views_one_after_the_other(stream):
    output = stream(io.StringIO())
    with live_view() as view:
        view("a", "b")
        view("c")
    assert output.getvalue() == "a\nb\nc\n"


def test_live_view_in_terminal_overwrites_the_previous_view(terminal):
    output = terminal(80)
    with live_view() as view:
        view("a", "b")
        first = len(output.getvalue())
        view("c")
        second = output.getvalue()[first:]
    up_and_clear = "\x1b[2K\x1b[1A\x1b[2K"
    assert up_and_clear in second
    assert second.rstrip().endswith("c")


def test_live_view_has_at_most_the_rows_of_the_terminal(terminal):
    output = terminal(21, 4)
    with live_view() as view:
        view(*(f"line {number}" for number in range(9)))
        shown = [line for line in STYLE.sub("", output.getvalue()).splitlines() if "line" in line]
    assert len(shown) == 3


def test_progress_bar_outside_terminal_prints_nothing(stream):
    output = stream(io.StringIO())
    with progress_bar("Working", 10) as advance:
        advance(5)
    assert output.getvalue() == ""


def test_progress_bar_in_terminal_shows_the_share_that_is_done_and_is_erased(terminal):
    output = terminal(80)
    with progress_bar("Working [a]", 10) as advance:
        advance(5)
    shown = STYLE.sub("", output.getvalue())
    assert "Working [a]" in shown
    assert " 50% " in shown
    assert shown.endswith("\x1b[1A\x1b[2K")


def test_help_text_marks_examples_only():
    text = help_text("""First.

        Prose that
        goes on.

        For example:
            dask elastic
            dask elastic demo
        """)
    assert text == "First.\n\nProse that\ngoes on.\n\n\b\nFor example:\n    dask elastic\n    dask elastic demo"
