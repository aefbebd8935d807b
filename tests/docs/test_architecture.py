from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from dask_elastic.executor import task_status
from dask_elastic.migration import home_move, labelled
from dask_elastic.runtime.protocol import job_status

ROOT = Path(__file__).parents[2]


def module(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


@pytest.mark.parametrize("name", ["protocol", "home", "task", "job"])
def test_drawing_on_page_is_made_from_its_table(name):
    drawing = module(ROOT / "tests" / "docs" / "protocol_drawing.py")
    assert drawing.drawn().get(name) == drawing.drawings()[name], "run python tests/docs/protocol_drawing.py"


def test_drawings_show_every_row_of_the_tables():
    drawn = module(ROOT / "tests" / "docs" / "protocol_drawing.py").drawn()
    for (phase, event, _), (following, action) in labelled.TABLE.items():
        assert f"    {phase.value} --> {following.value}: {event.value} / {action.name}\n" in drawn["protocol"]
        assert f"| `{action.name}` |" in drawn["protocol"]
    for (phase, event), (following, action) in home_move.TABLE.items():
        assert f"    {phase.value} --> {following.value}: {event.value} / {action.name}\n" in drawn["home"]
        assert f"| `{action.name}` |" in drawn["home"]
    for name, table in (("task", task_status.TABLE), ("job", job_status.TABLE)):
        for (status, event), after in table.items():
            assert f"    {status.value} --> {after.value}: {event.value}\n" in drawn[name]


def test_layers_on_page_equal_enforced_layers():
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    shown = re.search(r"<!-- layers: .*-->\n```\n(.*?)```", page, re.DOTALL)
    layers = [set(line.split(" | ")) for line in shown[1].splitlines()]
    enforced = module(ROOT / "tests" / "house" / "test_layers.py")
    layers[0] = {enforced.PLUGINS if name == "plugins" else name for name in layers[0]}
    assert layers == enforced.LAYERS
