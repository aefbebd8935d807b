"""Packages form layers: a module imports only from its own package and from lower layers."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ENGINE = "dask_elastic"
PLUGINS = "dask_elastic_plugins"

# Highest first. Packages of one layer are siblings and never import each other.
LAYERS = [
    {PLUGINS},
    {"cli"},
    {"testing"},
    {"dashboard", "runtime", "simulator", "spark", "connectors"},
    {"runtime.protocol"},
    {"papers"},
    {"checkpoint", "control", "executor"},
    {"migration", "planning", "windows"},
    {"routing", "state", "meters", "model"},
    {"topology"},
    {"vocab"},
]
LEVEL = {package: level for level, packages in enumerate(LAYERS) for package in packages}
# The runtime's protocol is a package of its own: Spark's side of the handoff speaks it without the runtime.
PROTOCOL = f"{ENGINE}.runtime.protocol"
# Single modules at the top level (the public API) may be imported by the outer packages only.
OUTER = LEVEL["runtime"]
FOR_ALL = {"_version"}
DOORS = frozenset(path.stem for path in (ROOT / ENGINE).glob("*.py") if path.stem != "__init__") | FOR_ALL


def sources(root: Path = ROOT) -> dict[str, Path]:
    """Return all modules of both import packages, by their dotted names; a package is named as its __init__."""
    found = {}
    for base, top in ((root, ENGINE), (root / "plugins", PLUGINS)):
        for path in sorted((base / top).rglob("*.py")):
            parts = path.relative_to(base).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def package_of(module: str) -> str | None:
    """Return the layered package of a module, None for the top level and for other projects."""
    parts = module.split(".")
    if parts[0] == PLUGINS:
        return PLUGINS
    if f"{module}.".startswith(f"{PROTOCOL}."):
        return "runtime.protocol"
    return parts[1] if parts[0] == ENGINE and len(parts) > 1 else None


def targets(node: ast.stmt, module: str, is_package: bool) -> list[str]:
    """Return the dotted names that an import statement refers to; an imported object counts as a submodule."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if not isinstance(node, ast.ImportFrom):
        return []
    origin = node.module or ""
    if node.level:
        parts = module.split(".")
        parts = parts[: len(parts) - node.level + is_package]
        origin = ".".join([*parts, node.module] if node.module else parts)
    return [f"{origin}.{alias.name}" for alias in node.names]


@functools.cache
def parsed(source: str) -> ast.Module:
    """Return the tree of a module, which several tests read."""
    return ast.parse(source)


def layer_violations(module: str, source: str, is_package: bool = False, doors: frozenset[str] = DOORS) -> list[str]:
    """Return every import of a module that the layers forbid, also within functions and for type checkers."""
    own = package_of(module)
    top_level = own is None or own in doors
    if not top_level and own not in LEVEL:
        return [f"{module}: package {own!r} has no layer"]
    found = []
    for node in ast.walk(parsed(source)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            for target in targets(node, module, is_package):
                problem = _problem(None if top_level else own, target, doors)
                if problem:
                    found.append(f"{module}:{node.lineno}: {problem}")
    return found


def _problem(own: str | None, target: str, doors: frozenset[str]) -> str | None:
    other = package_of(target)
    if own is None:
        return f"the engine imports the plugins ({target})" if other == PLUGINS else None
    if target.split(".")[0] not in (ENGINE, PLUGINS) or other == own:
        return None
    if other in LEVEL:
        if LEVEL[other] == LEVEL[own]:
            return f"{own} imports its sibling {other}"
        return f"{own} imports {other}, which lies above it" if LEVEL[other] < LEVEL[own] else None
    if other not in doors:
        return f"{own} imports dask_elastic as a whole"
    return None if other in FOR_ALL or LEVEL[own] <= OUTER else f"{own} imports {target} from the top level"


def imports_of_a_module(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements outside functions; imports for type checkers alone count like all others."""
    for node in body:
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            for name in ("body", "orelse", "finalbody"):
                yield from imports_of_a_module(getattr(node, name, []))
            for handler in getattr(node, "handlers", []):
                yield from imports_of_a_module(handler.body)


def import_cycle(modules: dict[str, tuple[str, bool]]) -> list[str] | None:
    """Return one cycle among modules, given as name -> (source, is it a package), or None."""
    graph: dict[str, set[str]] = {}
    for module, (source, is_package) in modules.items():
        edges = graph.setdefault(module, set())
        for node in imports_of_a_module(parsed(source).body):
            for target in targets(node, module, is_package):
                known = target if target in modules else target.rpartition(".")[0]
                if known in modules and known != module:
                    edges.add(known)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        cycle: list[str] = error.args[1]
        return cycle
    return None


# Planes of the runtime, highest first; client, scheduler and worker are processes that never import each other.
PLANES = [{"client", "scheduler", "worker"}, {"transport"}, {"config"}, {"protocol"}]
PLANE = {folder: level for level, folders in enumerate(PLANES) for folder in folders}


def plane_violations(module: str, source: str, is_package: bool = False) -> list[str]:
    """Return every import within the runtime that its planes forbid, those for type checkers included."""
    own = _plane_of(module)
    if own is None:
        return []
    found = []
    for node in ast.walk(parsed(source)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            for target in targets(node, module, is_package):
                other = _plane_of(target)
                if other in (None, own):
                    continue
                if other not in PLANE or PLANE[other] <= PLANE[own]:
                    found.append(f"{module}:{node.lineno}: {own} imports {other}")
    return found


def _plane_of(module: str) -> str | None:
    parts = module.split(".")
    return parts[2] if parts[:2] == [ENGINE, "runtime"] and len(parts) > 2 else None


def test_imports_follow_the_layers():
    found = [
        problem
        for module, path in sources().items()
        for problem in layer_violations(module, path.read_text(), path.name == "__init__.py")
    ]
    assert found == []


def test_modules_have_no_import_cycle():
    modules = {module: (path.read_text(), path.name == "__init__.py") for module, path in sources().items()}
    assert import_cycle(modules) is None


def test_processes_of_the_runtime_do_not_import_each_other():
    found = [
        problem
        for module, path in sources().items()
        for problem in plane_violations(module, path.read_text(), path.name == "__init__.py")
    ]
    assert found == []


def test_every_runtime_module_belongs_to_a_process_or_plane():
    planes = {_plane_of(module) for module in sources()} - {None}
    assert planes == set(PLANE)
    stray = [path.name for path in (ROOT / ENGINE / "runtime").glob("*.py") if path.name != "__init__.py"]
    assert stray == []


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("dask_elastic.runtime.client.job", "from dask_elastic.runtime.worker import node"),
        ("dask_elastic.runtime.scheduler.coordinator", "from dask_elastic.runtime.client.job import Job"),
        ("dask_elastic.runtime.transport.peer", "from dask_elastic.runtime.worker.job_part import JobPart"),
        ("dask_elastic.runtime.protocol.job_spec", "from dask_elastic.runtime.config import job_options"),
        (
            "dask_elastic.runtime.worker.handlers",
            "if TYPE_CHECKING:\n    from dask_elastic.runtime.scheduler.coordinator import Coordinator",
        ),
    ],
)
def test_import_between_processes_is_found(module, source):
    assert len(plane_violations(module, source)) == 1


def test_import_of_a_lower_plane_is_allowed():
    source = "from dask_elastic.runtime.transport import peer\nfrom dask_elastic.runtime.worker.members import Members"
    assert plane_violations("dask_elastic.runtime.worker.node", source) == []


def test_sources_include_the_known_packages():
    assert {package_of(module) for module in sources()} >= {"vocab", "meters", "planning"}


@pytest.mark.parametrize(
    ("module", "source", "problem"),
    [
        ("dask_elastic.meters.rate", "from dask_elastic.planning import balance", "which lies above it"),
        ("dask_elastic.meters.rate", "import dask_elastic.runtime.client.job", "which lies above it"),
        ("dask_elastic.meters.rate", "from dask_elastic.state.store import Store", "sibling state"),
        ("dask_elastic.spark.sink", "from dask_elastic import connectors", "sibling connectors"),
        ("dask_elastic.spark.sink", "from dask_elastic.runtime.client.job import Job", "sibling runtime"),
        ("dask_elastic.runtime.protocol.calls", "from dask_elastic.runtime.client.job import Job", "lies above it"),
        ("dask_elastic.executor.task", "from ..control import loop", "sibling control"),
        ("dask_elastic.vocab.errors", "def f():\n    import dask_elastic.topology", "vocab imports topology"),
        (
            "dask_elastic.vocab.errors",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from dask_elastic.state import x",
            "vocab.errors:3: vocab imports state",
        ),
        ("dask_elastic.runtime.client.job", "import dask_elastic", "as a whole"),
        ("dask_elastic.runtime.client.job", "import dask_elastic as de", "as a whole"),
        ("dask_elastic.cli.run", "from dask_elastic import submit", "as a whole"),
        ("dask_elastic.state.store", "from dask_elastic.config import defaults", "from the top level"),
        ("dask_elastic.runtime.client.job", "from dask_elastic_plugins import worker", "which lies above it"),
        ("dask_elastic", "import dask_elastic_plugins", "engine imports the plugins"),
        ("dask_elastic.config", "import dask_elastic_plugins.worker", "engine imports the plugins"),
        ("dask_elastic.stuff.thing", "import numpy", "has no layer"),
    ],
)
def test_import_against_layers_is_found(module, source, problem):
    found = layer_violations(module, source, doors=frozenset({"config", "_version"}))
    assert len(found) == 1
    assert problem in found[0]


def test_relative_import_in_init_is_resolved_from_its_package():
    source = "from ..control import loop\nfrom .task import Task"
    assert layer_violations("dask_elastic.executor", source, is_package=True) == [
        "dask_elastic.executor:1: executor imports its sibling control"
    ]


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("dask_elastic.meters.rate", "import numpy\nfrom dask_elastic.vocab.errors import ElasticError"),
        ("dask_elastic.meters.rate", "from .ring import SlotRing\nfrom ..vocab import errors"),
        ("dask_elastic.meters.rate", "from dask_elastic.meters.ring import SlotRing"),
        (
            "dask_elastic.runtime.client.job",
            "from dask_elastic._version import __version__\nfrom dask_elastic import vocab",
        ),
        ("dask_elastic.runtime.client.job", "from dask_elastic.config import defaults"),
        ("dask_elastic_plugins.worker", "from dask_elastic.runtime import job\nfrom . import install"),
        ("dask_elastic.spark.sink", "from dask_elastic.runtime.protocol import job_calls"),
        ("dask_elastic", "from dask_elastic.runtime import submit\nfrom dask_elastic.vocab import errors"),
        ("dask_elastic.config", "import dask\nfrom dask_elastic.runtime import job"),
    ],
)
def test_import_along_layers_is_accepted(module, source):
    assert layer_violations(module, source, doors=frozenset({"config", "_version"})) == []


def test_import_cycle_is_found():
    modules = {
        "p.a": ("from p.b import x", False),
        "p.b": ("try:\n    import p.c\nexcept ImportError:\n    pass", False),
        "p.c": ("from . import a", False),
    }
    cycle = import_cycle(modules)
    assert cycle is not None
    assert set(cycle) == {"p.a", "p.b", "p.c"}


def test_type_checking_import_counts_for_cycles():
    modules = {"p.a": ("import p.b", False), "p.b": ("if TYPE_CHECKING:\n    import p.a", False)}
    assert import_cycle(modules) is not None


def test_import_within_function_makes_no_cycle():
    assert import_cycle({"p.a": ("import p.b", False), "p.b": ("def f():\n    import p.a", False)}) is None
