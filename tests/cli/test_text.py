from __future__ import annotations

import io

import pytest

from dask_elastic.cli.command import help_text
from dask_elastic.cli.screen import Screen
from dask_elastic.cli.table import table


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def terminal_size(monkeypatch):
    """Return a function that sets the size of the terminal."""

    def resize(columns, rows):
        monkeypatch.setenv("COLUMNS", str(columns))
        monkeypatch.setenv("LINES", str(rows))

    return resize


def test_screen_outside_terminal_prints_texts_one_after_the_other():
    stream = io.StringIO()
    screen = Screen(stream)
    screen.show("a\nb")
    screen.show("c")
    assert stream.getvalue() == "a\nb\nc\n"


def test_screen_in_terminal_overwrites_the_previous_text(terminal_size):
    terminal_size(80, 24)
    stream = Terminal()
    screen = Screen(stream)
    screen.show("a\nb")
    screen.show("c")
    screen.show("d")
    assert stream.getvalue() == "a\nb\n\x1b[2A\x1b[Jc\n\x1b[1A\x1b[Jd\n"


def test_screen_crops_text_to_the_terminal(terminal_size):
    terminal_size(21, 4)
    stream = Terminal()
    Screen(stream).show("\n".join(f"line {number} " + "x" * 40 for number in range(9)))
    shown = stream.getvalue().splitlines()
    assert len(shown) == 3
    assert shown[-1] == "... and 7 more lines"
    assert max(map(len, shown)) <= 20


def test_table_aligns_columns():
    shown = table(["job", "where", "rows"], [["a", "tcp://b:1", "1"], ["longer", "c", "1,000"]], left=2)
    assert shown.splitlines() == [
        "job     where       rows",
        "a       tcp://b:1      1",
        "longer  c          1,000",
    ]


def test_help_text_marks_examples_only():
    text = help_text("""First.

        Prose that
        goes on.

        For example:
            dask elastic
            dask elastic demo
        """)
    assert text == "First.\n\nProse that\ngoes on.\n\n\b\nFor example:\n    dask elastic\n    dask elastic demo"
