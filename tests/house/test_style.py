"""Modules, folders and functions are small enough to survey, and their names say what they contain."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

FILE_LINES = 450
FOLDER_MODULES = 30
FUNCTION_LINES = 70
EMPTY_NAMES = {"common", "helper", "helpers", "manager", "misc", "util", "utils"}
WIDE = {"Exception", "BaseException"}


def style_violations(name: str, source: str) -> list[str]:
    """Return the style rules that a module with this file name violates."""
    tree = ast.parse(source)
    lines = len(source.splitlines())
    found = [f"has {lines} lines, {FILE_LINES} at most"] if lines > FILE_LINES else []
    stem = name.removesuffix(".py")
    if EMPTY_NAMES & set(stem.split("_")):
        found.append(f"{stem!r} is no name: say what is in it")
    if ast.get_docstring(tree) is None and (stem == "__init__" or not stem.startswith("_")):
        found.append("has no docstring")
    if len(tree.body) > 1 and not _has_future_annotations(tree):
        found.append("does not begin with `from __future__ import annotations`")
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = _length(node)
            if length > FUNCTION_LINES:
                found.append(f"line {node.lineno}: {node.name} has {length} lines, {FUNCTION_LINES} at most")
        elif isinstance(node, ast.ExceptHandler):
            found += _swallows(node)
    return found


def _has_future_annotations(tree: ast.Module) -> bool:
    return any(
        isinstance(node, ast.ImportFrom)
        and node.module == "__future__"
        and any(alias.name == "annotations" for alias in node.names)
        for node in tree.body[:2]
    )


def _length(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return the lines of a function without its docstring, whose length is not limited."""
    length = (node.end_lineno or node.lineno) - node.lineno + 1
    if ast.get_docstring(node) is not None:
        first = node.body[0]
        length -= (first.end_lineno or first.lineno) - first.lineno + 1
    return length


def _swallows(node: ast.ExceptHandler) -> list[str]:
    """Return a message if a handler catches every error and ignores it."""
    if node.type is None:
        return [f"line {node.lineno}: a bare except"]
    names = {ast.unparse(part) for part in (node.type.elts if isinstance(node.type, ast.Tuple) else [node.type])}
    idle = all(
        isinstance(part, ast.Pass | ast.Continue)
        or (isinstance(part, ast.Expr) and isinstance(part.value, ast.Constant))
        for part in node.body
    )
    return [f"line {node.lineno}: an except that swallows every error"] if names & WIDE and idle else []


def test_modules_follow_the_style():
    found = [
        f"{path.relative_to(ROOT)} {problem}"
        for top in ("dask_elastic", "plugins")
        for path in sorted((ROOT / top).rglob("*.py"))
        for problem in style_violations(path.name, path.read_text())
    ]
    assert found == []


def crowded(folders: dict[str, int]) -> list[str]:
    """Return the folders that have too many modules, given how many each has."""
    return [f"{folder} has {count} modules" for folder, count in folders.items() if count > FOLDER_MODULES]


def test_folders_have_at_most_thirty_modules():
    folders = {
        str(folder.relative_to(ROOT)): sum(path.name != "__init__.py" for path in folder.glob("*.py"))
        for top in ("dask_elastic", "plugins", "tests")
        for folder in (ROOT / top).rglob("*")
        if folder.is_dir()
    }
    assert folders["dask_elastic/executor"] > 20
    assert crowded(folders) == []
    assert crowded({"a": 30, "b": 31}) == ["b has 31 modules"]


def test_examples_in_docstrings_remove_their_temporary_files():
    kept = re.compile(r"^ *(>>>|\.\.\.) .*\b(mkdtemp|mkstemp)\(", re.MULTILINE)
    modules = [path for top in ("dask_elastic", "plugins") for path in sorted((ROOT / top).rglob("*.py"))]
    assert [str(path.relative_to(ROOT)) for path in modules if kept.search(path.read_text())] == []


def test_every_import_package_has_py_typed():
    tops = [ROOT / "dask_elastic", *(path for path in (ROOT / "plugins").glob("*") if (path / "__init__.py").exists())]
    assert [top.name for top in tops if not (top / "py.typed").exists()] == []


def test_names_of_test_files_are_unique():
    names = [path.name for path in (ROOT / "tests").rglob("test_*.py")]
    assert sorted(names) == sorted(set(names))


HEAD = '"""A module."""\n\nfrom __future__ import annotations\n'


@pytest.mark.parametrize(
    ("name", "source", "problem"),
    [
        ("rate.py", HEAD + "x = 1\n" * 450, "has 453 lines, 450 at most"),
        ("rate.py", HEAD + "def f():\n" + "    x = 1\n" * 70, "line 4: f has 71 lines, 70 at most"),
        ("rate.py", HEAD + "class A:\n    async def f(self):\n" + "        x = 1\n" * 70, "f has 71 lines"),
        ("utils.py", HEAD, "'utils' is no name"),
        ("job_manager.py", HEAD, "'job_manager' is no name"),
        ("rate.py", "from __future__ import annotations\n", "has no docstring"),
        ("__init__.py", "", "has no docstring"),
        ("rate.py", '"""A module."""\n\nx = 1\n', "does not begin with"),
        ("rate.py", HEAD + "try:\n    f()\nexcept:\n    raise\n", "line 6: a bare except"),
        (
            "rate.py",
            HEAD + "try:\n    f()\nexcept (KeyError, Exception):\n    pass\n",
            "line 6: an except that swallows",
        ),
    ],
)
def test_style_violation_is_found(name, source, problem):
    found = style_violations(name, source)
    assert len(found) == 1
    assert problem in found[0]


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("rate.py", HEAD + "x = 1\n" * 447),
        ("rate.py", HEAD + "def f():\n" + "    x = 1\n" * 69),
        ("rate.py", HEAD + 'def f():\n    """Long.\n' + "\n" * 100 + '    """\n    return 1\n'),
        ("__init__.py", '"""A package."""\n'),
        ("_private.py", "from __future__ import annotations\n\nx = 1\n"),
        ("commonality.py", HEAD),
        (
            "rate.py",
            HEAD + "try:\n    f()\nexcept KeyError:\n    pass\nexcept Exception as error:\n    report(error)\n",
        ),
    ],
)
def test_module_without_violation_is_accepted(name, source):
    assert style_violations(name, source) == []
