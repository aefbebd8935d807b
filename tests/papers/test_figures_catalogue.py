from __future__ import annotations

import sys
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dask_elastic.papers.figures import albic, catalogue
from dask_elastic.papers.figures.figure import Figure
from dask_elastic.vocab.errors import ElasticError

NAMES = (
    *(f"albic-{number}" for number in (2, 3, 4, 5, 10, 11)),
    "elasticutor-table-3",
    *(f"elb-clb-{number}" for number in (2, 3, 4)),
    "elb-clb-table-1",
)


def test_catalogue_lists_figures_by_unique_name_and_source():
    found = catalogue.figures()
    assert [name for name in found if name in NAMES] == list(NAMES)
    assert all(name == figure.name for name, figure in found.items())
    assert len({figure.source for figure in found.values()}) == len(found)


@pytest.mark.parametrize("name", NAMES)
def test_write_creates_parquet_and_png_file(name, quick_table, tmp_path):
    figure = replace(catalogue.figures()[name], compute=lambda seed, quick: quick_table(name))
    numbers, drawing = catalogue.write(figure, tmp_path)
    assert [numbers.name, drawing.name] == [f"{name}.parquet", f"{name}.png"]
    assert pq.read_table(numbers).num_rows > 1
    assert drawing.read_bytes().startswith(b"\x89PNG")
    assert drawing.stat().st_size > 10_000


def plain(compute):
    return Figure("plain", "A paper", "A title", compute, lambda table, axes: None)


def test_write_without_matplotlib_fails_before_computation(monkeypatch, tmp_path):
    computed = []
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ElasticError, match=r"pip install 'dask-elastic\[papers\]'"):
        catalogue.write(plain(lambda seed, quick: computed.append(seed)), tmp_path)
    assert computed == []


def test_write_passes_seed_and_quick_to_compute(tmp_path):
    calls = []

    def compute(seed, quick):
        calls.append((seed, quick))
        return pa.table({"x": [1]})

    catalogue.write(plain(compute), tmp_path / "a" / "b")
    catalogue.write(plain(compute), tmp_path / "a", seed=7, quick=True)
    assert calls == [(0, False), (7, True)]


def test_catalogue_with_duplicate_name_raises_error(monkeypatch):
    monkeypatch.setattr(albic, "FIGURES", (*albic.FIGURES, replace(albic.FIGURES[0], source="Another")))
    with pytest.raises(ElasticError, match="two figures are named 'albic-2'"):
        catalogue.figures()
