"""Pure packages: no Dask, no threads, no clock, no randomness, no environment, so that the simulator can run them."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

PURE = [
    "control",
    "executor",
    "meters",
    "migration",
    "model",
    "papers",
    "planning",
    "routing",
    "simulator",
    "state",
    "topology",
    "vocab",
    "windows",
]
TIMED = ROOT / "dask_elastic" / "papers" / "figures"
"""Figures measure how long planning takes, so they read the clock."""
ON_DISK = ROOT / "dask_elastic" / "state" / "disk"
"""State on disk is in files; nothing else in it depends on the machine."""
METIS = ROOT / "dask_elastic" / "planning" / "placement" / "metis.py"
"""METIS has random numbers and signal handlers of the whole process, so all its callers share one lock."""

FORBIDDEN_MODULES = {
    "frameworks": {"bokeh", "dask", "distributed", "prometheus_client", "pyspark", "tornado"},
    "threads and processes": {"_thread", "asyncio", "concurrent", "multiprocessing", "subprocess", "threading"},
    "the clock": {"time"},
    "chance": {"random", "secrets", "uuid"},
    "the machine": {"os", "platform", "select", "selectors", "signal", "socket", "tempfile"},
}
REASON = {module: reason for reason, modules in FORBIDDEN_MODULES.items() for module in modules}

CLOCKS = {
    "date.today",
    "datetime.now",
    "datetime.today",
    "datetime.utcnow",
    "Timestamp.now",
    "Timestamp.today",
    "Timestamp.utcnow",
}
# Names of numpy.random that take their seed as an argument.
SEEDED = {
    "default_rng",
    "Generator",
    "SeedSequence",
    "PCG64",
    "PCG64DXSM",
    "Philox",
    "SFC64",
    "MT19937",
    "BitGenerator",
}


def impurities(source: str) -> list[str]:
    """Return what makes a module impure, each with its line."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [(node.lineno, _forbidden(alias.name)) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found.append((node.lineno, _forbidden(node.module or "")))
            found += [(node.lineno, _from_numpy_random(node.module, alias.name)) for alias in node.names]
        elif isinstance(node, ast.Call):
            found.append((node.lineno, _call(node)))
    return [f"line {line}: {problem}" for line, problem in sorted(found, key=lambda x: x[0]) if problem]


def _forbidden(module: str) -> str:
    root = module.split(".")[0]
    return f"imports {module} ({REASON[root]})" if root in REASON else ""


def _from_numpy_random(module: str | None, name: str) -> str:
    return f"imports numpy.random.{name} (chance)" if module == "numpy.random" and name not in SEEDED else ""


def _call(node: ast.Call) -> str:
    name = ast.unparse(node.func)
    parts = name.split(".")
    if ".".join(parts[-2:]) in CLOCKS:
        return f"calls {name} (the clock)"
    if parts[-1] == "default_rng" and not (node.args or node.keywords):
        return f"calls {name} without a seed (chance)"
    if len(parts) == 3 and parts[0] in ("np", "numpy") and parts[1] == "random" and parts[2] not in SEEDED:
        return f"calls {name} (chance)"
    return f"calls {name} (files)" if name in ("open", "input") else ""


@pytest.mark.parametrize("package", PURE)
def test_package_is_pure(package):
    found = [
        f"{path.relative_to(ROOT)} {problem}"
        for path in sorted((ROOT / "dask_elastic" / package).rglob("*.py"))
        if not path.is_relative_to(TIMED)
        for problem in impurities(path.read_text())
        if not (path.is_relative_to(ON_DISK) and problem.endswith("imports os (the machine)"))
        if not (path == METIS and problem.endswith("imports threading (threads and processes)"))
    ]
    assert found == []


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("import dask.array as da", "line 1: imports dask.array (frameworks)"),
        ("from distributed import Client", "line 1: imports distributed (frameworks)"),
        ("def f():\n    import threading", "line 2: imports threading (threads and processes)"),
        ("if TYPE_CHECKING:\n    import asyncio", "line 2: imports asyncio (threads and processes)"),
        ("from concurrent.futures import Future", "line 1: imports concurrent.futures (threads and processes)"),
        ("from time import monotonic", "line 1: imports time (the clock)"),
        ("import random", "line 1: imports random (chance)"),
        ("import os.path", "line 1: imports os.path (the machine)"),
        ("import socket", "line 1: imports socket (the machine)"),
        ("now = datetime.datetime.now()", "line 1: calls datetime.datetime.now (the clock)"),
        ("now = pd.Timestamp.now('UTC')", "line 1: calls pd.Timestamp.now (the clock)"),
        ("x = np.random.rand(3)", "line 1: calls np.random.rand (chance)"),
        ("x = np.random.default_rng()", "line 1: calls np.random.default_rng without a seed (chance)"),
        ("from numpy.random import rand", "line 1: imports numpy.random.rand (chance)"),
        ("with open('x') as f: pass", "line 1: calls open (files)"),
    ],
)
def test_impure_line_is_found(source, problem):
    assert impurities(source) == [problem]


@pytest.mark.parametrize(
    "source",
    [
        "import math\nimport numpy as np\nimport pyarrow as pa\nimport pandas\nimport scipy.optimize",
        "from dask_elastic.vocab import errors",
        "from .time import Clock",
        "rng = np.random.default_rng(seed)\nx = rng.random()",
        "from numpy.random import Generator, default_rng",
        "from datetime import datetime\nx = datetime(2013, 1, 1)",
        "x = clock.now()",
    ],
)
def test_pure_line_is_accepted(source):
    assert impurities(source) == []
