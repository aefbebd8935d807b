"""Production code is used by production code, unless users, libraries or a later part of the plan call it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
SHORT_TEXT = 60
"""Names in texts up to this length count as uses: operations and options are looked up by their names."""

CALLED_BY_LIBRARIES = {
    # click
    "format_commands", "get_command", "list_commands",
    # distributed, its plugins and its serialisation
    "_deserialize", "_serialize", "before_close", "dask_setup", "remove_worker", "restart", "setup", "teardown",
    "valid_workers_downscaling",
    # IPython
    "_repr_html_",
    # PySpark
    "onQueryIdle", "onQueryProgress", "onQueryStarted", "onQueryTerminated", "streamWriter",
}  # fmt: skip

CALLED_LATER = {
    # windows: the user's interface, and shared partial results
    "choose_layout", "naive_merges", "pays", "sharing", "tumbling",
    # checkpoints: the runtime takes and restores them
    "check_writable", "is_cut", "new_bytes", "next_generation", "next_number", "publish", "reading_of",
    "restore_executor", "sweep", "without_files",
    # groupings of a stream by other rules than its key
    "PartialKeyGrouping", "consistent_hash", "expansion", "universal_hash",
    # checkpoints, which check sources and sinks when a job is submitted
    "check_restartable",
    # decisions that are replayed from a recording
    "decision_from_dict",
}  # fmt: skip


def names_in(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Yield the names that code uses; docstrings, long texts and the definitions themselves do not count."""
    for node in nodes:
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.keyword(arg=str(name)):
                yield name
            case ast.alias(name=name):
                yield name.rpartition(".")[2]
            case ast.Constant(value=str(text)) if len(text) < SHORT_TEXT:
                yield from re.findall(r"\w+", text)


def definitions(nodes: Iterable[ast.AST]) -> Iterator[tuple[int, str]]:
    """Yield line and name of every function and class but magic methods."""
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and not node.name.startswith("__"):
            yield node.lineno, node.name


def unused(production: dict[str, str], shown: str) -> list[str]:
    """Return the definitions that neither production code nor documentation, examples and benchmarks mention."""
    trees = {module: [*ast.walk(ast.parse(source))] for module, source in production.items()}
    uses = {name for nodes in trees.values() for name in names_in(nodes)}
    words = set(re.findall(r"\w+", shown))
    return [
        f"{module}:{line}: {name}"
        for module, nodes in trees.items()
        for line, name in definitions(nodes)
        if name not in uses and name not in words and name not in CALLED_BY_LIBRARIES | CALLED_LATER
    ]


def test_production_code_is_used_outside_tests():
    production = {
        str(path.relative_to(ROOT)): path.read_text()
        for top in ("dask_elastic", "plugins")
        for path in sorted((ROOT / top).rglob("*.py"))
    }
    shown = [path.read_text() for top in ("docs", "examples", "benchmarks") for path in (ROOT / top).rglob("*.*y")]
    pages = [path.read_text() for path in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]]
    assert unused(production, " ".join([*shown, *pages])) == []


def test_unused_function_is_found():
    production = {
        "a.py": "def used(): ...\ndef idle(): ...\ndef shown(): ...\n",
        "b.py": "from a import used\nused()\n",
    }
    assert unused(production, "call `shown()`") == ["a.py:2: idle"]
