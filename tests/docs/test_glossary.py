"""The glossary's terms are those of the code and the documentation, and banned idioms occur in neither."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
INDEX = ROOT / "docs" / "index.md"

CLEAN = [
    ".ci/run",
    "CHANGELOG.md",
    "Makefile",
    "README.md",
    "benchmarks",
    "dask_elastic/cli",
    "dask_elastic/connectors",
    "dask_elastic/papers",
    "dask_elastic/spark",
    "dask_elastic/testing",
    "docs",
    "examples",
    "plugins",
    "tests/cli",
    "tests/connectors",
    "tests/dashboard",
    "tests/docs",
    "tests/papers",
    "tests/simulator",
    "tests/testing",
]
"""Files and folders without banned idioms."""

SUFFIXES = {"", ".cfg", ".css", ".html", ".md", ".py", ".rst", ".toml", ".yaml", ".yml"}

BANNED = [
    "amiss",
    "at hand",
    "(?:come|comes|came) to nothing",
    "for good",
    "for want of",
    "(?:has|have|had) but",
    "hears",
    "(?:is|are|was|were|be|been|has|have|had|once|when|what) gone",
    "knows of",
    "mend(?:s|ed|ing)?",
    "nobody(?:'s)?",
    "of late(?! (?:data|messages|rows|tuples))",
    "(?:put|puts|putting) out",
    "signs? of life",
    "somebody(?:'s)?",
    "(?:step|steps|stepped|stepping) aside",
    "(?:is|are|was|were|be|been) told of",
    "whence",
    "who computes",
    "whoever(?:'s)?",
]
"""Regular expressions of idioms that STYLE's *English* replaces by the field's word; a space may be a line break."""

EXCEPTIONS = {
    ("docs/tutorial.md", "mend"),
    ("tests/docs/test_glossary.py", "*"),
}
"""Pairs of a file and an idiom that it may contain, or `*` for all of them."""


def idioms(text: str) -> list[tuple[int, str]]:
    """Return line and wording of each banned idiom, also in names and across the lines of a comment."""
    any_of = "|".join(BANNED).replace(" ", r"[ #\n]+")
    pattern = re.compile(rf"\b(?:{any_of})\b", re.IGNORECASE)
    found = pattern.finditer(text.replace("_", " "))
    return [(text.count("\n", 0, match.start()) + 1, re.sub(r"[ #\n]+", " ", match[0])) for match in found]


def files(places: list[str]) -> list[Path]:
    """Return the text files at some places, which are files or folders."""
    found = []
    for place in places:
        path = ROOT / place
        found += [path] if path.is_file() else sorted(below for below in path.rglob("*") if below.is_file())
    return [path for path in found if path.suffix in SUFFIXES and "__pycache__" not in path.parts]


def names(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def rows(text: str) -> list[list[str]]:
    """Return the cells of the glossary's tables, without the heading rows."""
    section = text.partition("\n## Glossary\n")[2]
    lines = [line for line in section.splitlines() if line.startswith("| ")]
    table = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [cells for cells in table if cells[0] != "term"]


def terms(text: str) -> list[str]:
    return [term for cells in rows(text) for term in cells[0].split(", ")]


def occurs(term: str, text: str) -> bool:
    """Return whether a text has the term, as words or as a name such as `state_view` or `StateView`."""
    words = r"[\s_-]*".join(map(re.escape, term.split()))
    return re.search(rf"(?<![a-zA-Z]){words}(?:s|es)?(?![a-z])", text, re.IGNORECASE) is not None


@pytest.mark.parametrize("place", CLEAN)
def test_text_has_no_banned_idiom(place):
    found = [
        f"{names(path)}:{line}: {idiom}"
        for path in files([place])
        if (names(path), "*") not in EXCEPTIONS
        for line, idiom in idioms(path.read_text(encoding="utf-8"))
        if (names(path), idiom.lower()) not in EXCEPTIONS
    ]
    assert found == []


def test_places_and_exceptions_exist():
    assert [place for place in [*CLEAN, *(name for name, _ in EXCEPTIONS)] if not (ROOT / place).exists()] == []


def test_glossary_terms_occur_in_code_or_docs():
    text = "\n".join(
        path.read_text(encoding="utf-8")
        for path in files(["dask_elastic", "plugins", "docs", "README.md"])
        if path != INDEX
    )
    assert [term for term in terms(INDEX.read_text(encoding="utf-8")) if not occurs(term, text)] == []


def test_glossary_rows_are_complete_and_unique():
    text = INDEX.read_text(encoding="utf-8")
    assert [cells for cells in rows(text) if len(cells) != 4 or not all(cells)] == []
    assert sorted(terms(text)) == sorted(set(terms(text)))
    assert len(terms(text)) >= 70


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Whoever computes waits.", [(1, "Whoever")]),
        ("a\nworker that is\n    # told of it", [(2, "is told of")]),
        ("it puts\nout rows", [(1, "puts out")]),
        ("the node is gone", [(1, "is gone")]),
        ("def test_nobody_waits():", [(1, "nobody")]),
        ("amend, hearing, output, `__gone`, a number of late rows", []),
    ],
)
def test_idioms_are_found_as_words_across_lines(text, found):
    assert idioms(text) == found


@pytest.mark.parametrize(
    ("term", "text", "expected"),
    [
        ("state view", "class StateView:", True),
        ("state view", "a state\nview", True),
        ("shard", "shards", True),
        ("lag", "flags and lagging", False),
    ],
)
def test_term_occurs_as_word_or_name(term, text, expected):
    assert occurs(term, text) is expected
