from __future__ import annotations

import importlib.util
import re
from pathlib import Path

from dask_elastic.migration.labelled import TABLE

ROOT = Path(__file__).parents[2]


def module(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


def test_protocol_drawing_equals_its_table():
    drawing = module(ROOT / "tests" / "docs" / "protocol_drawing.py")
    assert drawing.drawn() == drawing.drawing(), "run python tests/docs/protocol_drawing.py"
    assert all(action.name in drawing.drawn() for _, action in TABLE.values())


def test_layers_of_page_equal_enforced_layers():
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    shown = re.search(r"<!-- layers: .*-->\n```\n(.*?)```", page, re.DOTALL)
    layers = [set(line.split(" | ")) for line in shown[1].splitlines()]
    enforced = module(ROOT / "tests" / "house" / "test_layers.py")
    layers[0] = {enforced.PLUGINS if name == "plugins" else name for name in layers[0]}
    assert layers == enforced.LAYERS
