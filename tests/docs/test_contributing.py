from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
TARGETS = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)


def resolves(name):
    """Whether a dotted name is a module, or an attribute of one."""
    home, _, attribute = name.rpartition(".")
    module = importlib.import_module(home)
    return hasattr(module, attribute) or importlib.util.find_spec(name) is not None


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`(dask_elastic(?:\.\w+)+)`", GUIDE))))
def test_contributing_name_exists(name):
    assert resolves(name)


@pytest.mark.parametrize("path", sorted(set(re.findall(r"(?:tests|benchmarks|docs|examples)/[\w/.*-]+\w", GUIDE))))
def test_contributing_path_exists(path):
    assert path.startswith("docs/_build") or [*ROOT.glob(path)]


@pytest.mark.parametrize("target", sorted(set(re.findall(r"(?:^|`)make ([a-z]+)", GUIDE, re.MULTILINE))))
def test_contributing_make_target_exists(target):
    assert target in TARGETS


@pytest.mark.parametrize("link", sorted(set(re.findall(r"\]\(([^)#]+)\)", GUIDE))))
def test_contributing_link_leads_to_a_file(link):
    assert (ROOT / link).exists()
