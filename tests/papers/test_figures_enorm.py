"""Enorm's figures 14 and 15: the claims of the paper hold, and the figures can be drawn."""

from __future__ import annotations

import itertools

import pytest
from matplotlib.figure import Figure as Canvas

from dask_elastic.papers.figures.enorm import FIGURES, OPERATORS

COLUMN = {"enorm-14": "components", "enorm-15": "communication"}


@pytest.fixture(scope="module")
def tables():
    return {figure.name: figure.compute(1, True) for figure in FIGURES}


def values(table, name):
    """Return the figure's numbers by operators, score and treatment of cycles."""
    return {(row["operators"], row["score"], row["cycles"]): row[COLUMN[name]] for row in table.to_pylist()}


def test_enorm_figures_are_14_and_15():
    assert [figure.name for figure in FIGURES] == ["enorm-14", "enorm-15"]
    assert all(figure.source.startswith("Enorm, figure 1") for figure in FIGURES)


@pytest.mark.parametrize("figure", FIGURES, ids=lambda figure: figure.name)
def test_figure_has_each_point_once(figure, tables):
    table = tables[figure.name]
    points = list(zip(*(table[name].to_pylist() for name in ("operators", "score", "cycles")), strict=True))
    assert sorted(points) == sorted(
        itertools.product(OPERATORS, ("baseline", "attributes", "communication"), ("forbidden", "as printed"))
    )
    assert set(table.column_names) > {COLUMN[figure.name], f"{COLUMN[figure.name]}_error", "jobs", "cyclic_jobs"}


@pytest.mark.parametrize("cycles", ["forbidden", "as printed"])
@pytest.mark.parametrize("operators", OPERATORS)
def test_fusion_by_communication_sends_least_between_components(operators, cycles, tables):
    between = values(tables["enorm-15"], "enorm-15")
    assert 0 < between[operators, "communication", cycles] < between[operators, "attributes", cycles] < 100
    assert between[operators, "communication", cycles] < between[operators, "baseline", cycles] < 100


@pytest.mark.parametrize("cycles", ["forbidden", "as printed"])
def test_fusion_by_communication_has_more_components_than_by_attributes(cycles, tables):
    # With few jobs, the difference shows only in the sum over all sizes.
    found = values(tables["enorm-14"], "enorm-14")
    means = {score: sum(found[size, score, cycles] for size in OPERATORS) for score in ("attributes", "communication")}
    assert means["communication"] > means["attributes"]


@pytest.mark.parametrize("score", ["baseline", "attributes", "communication"])
def test_components_increase_with_job_size_and_without_cycles(score, tables):
    found = values(tables["enorm-14"], "enorm-14")
    for cycles in ("forbidden", "as printed"):
        assert found[50, score, cycles] < found[150, score, cycles]
    assert all(found[size, score, "forbidden"] > found[size, score, "as printed"] for size in OPERATORS)


def test_fusion_as_printed_makes_cycles_and_default_makes_none(tables):
    for row in tables["enorm-14"].to_pylist():
        assert row["cyclic_jobs"] == 0 if row["cycles"] == "forbidden" else row["cyclic_jobs"] > 0.5


def test_figure_14_is_equal_for_same_seed_and_differs_for_other_seed(tables):
    figure = FIGURES[0]
    assert figure.compute(1, True).equals(tables[figure.name])
    assert not figure.compute(2, True).equals(tables[figure.name])


@pytest.mark.parametrize("figure", FIGURES, ids=lambda figure: figure.name)
def test_figure_is_drawn_with_six_legend_entries(figure, tables, tmp_path):
    canvas = Canvas()
    axes = canvas.add_subplot()
    figure.draw(tables[figure.name], axes)
    assert len(axes.get_legend().get_texts()) == 6
    assert axes.get_xlabel() == "operators"
    canvas.savefig(tmp_path / f"{figure.name}.png")
    assert (tmp_path / f"{figure.name}.png").stat().st_size > 5000
