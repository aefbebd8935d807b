from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from dask_elastic.runtime.config.job_options import NAMES

ROOT = Path(__file__).parents[2]
ROW = re.compile(r"^\| `elastic\.([\w-]+)` \| `([^`]+)` \|", re.MULTILINE)


@pytest.fixture(scope="module")
def listed():
    return dict(ROW.findall((ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")))


def test_page_lists_every_option_with_its_default(listed):
    shipped = yaml.safe_load((ROOT / "dask_elastic" / "elastic.yaml").read_text(encoding="utf-8"))["elastic"]
    assert listed == {name: str(value) for name, value in shipped.items()}


def test_page_lists_every_option_of_submit(listed):
    assert {name.replace("_", "-") for name in NAMES} <= set(listed)
