"""State migration's figures: the claims of the paper hold, and the figures can be drawn."""

from __future__ import annotations

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from matplotlib.figure import Figure as Canvas

from dask_elastic.papers.figures.short_texts import APPLICATIONS, SCHEMA, WORDS, short_texts
from dask_elastic.papers.figures.state_migration import FIGURES, STRATEGIES, Source, _aware, figures
from dask_elastic.planning.intervals.single_step import single_step
from dask_elastic.planning.intervals.transition import projected_costs, single_step_aware

TIMES = {"median_ms", "max_ms", "seconds"}


@pytest.fixture(scope="module")
def tables():
    return {figure.name.rsplit("-", 1)[1]: figure.compute(1, True) for figure in FIGURES}


def costs(table, strategy, application):
    rows = table.filter((pc.field("strategy") == strategy) & (pc.field("application") == application))
    return np.array(rows.sort_by("tau")["cost_percent"])


def test_state_migration_figures_are_12_12b_13_15_and_17():
    assert [figure.name for figure in FIGURES] == [
        f"state-migration-{number}" for number in ("12", "12b", "13", "15", "17")
    ]
    assert all(figure.source.startswith("State migration, figure 1") for figure in FIGURES)


@pytest.mark.parametrize("application", list(APPLICATIONS))
def test_mtm_aware_steps_cost_less_than_single_steps_and_baselines(tables, application):
    found = {strategy: costs(tables["12"], strategy, application) for strategy in STRATEGIES}
    mean = {strategy: values.mean() for strategy, values in found.items()}
    assert mean["MTM-aware"] < mean["single-step"] < mean["Storm"]
    assert mean["MTM-aware"] < mean["Redist"] < mean["consistent hashing"]
    # On a short sequence, planning ahead may cost up to 5 % more.
    assert (found["MTM-aware"] <= 1.05 * found["single-step"]).all()


@pytest.mark.parametrize("application", list(APPLICATIONS))
def test_mtm_aware_steps_with_looser_threshold_cost_less_and_gain_more(tables, application):
    # Single steps need not become cheaper: a saving in one step may raise the cost of the next.
    aware, single = (costs(tables["12"], strategy, application) for strategy in ("MTM-aware", "single-step"))
    assert aware[-1] < aware[0]
    assert single[-1] - aware[-1] > single[0] - aware[0]


@pytest.mark.parametrize("application", list(APPLICATIONS))
def test_strategies_without_threshold_cost_the_same_for_every_tau(tables, application):
    for strategy in ("Storm", "consistent hashing"):
        assert np.ptp(costs(tables["12"], strategy, application)) == 0


@pytest.mark.parametrize("application", list(APPLICATIONS))
def test_single_steps_with_8_to_16_nodes_cost_less_than_baselines(tables, application):
    found = {strategy: costs(tables["12b"], strategy, application) for strategy in STRATEGIES}
    assert not found.pop("MTM-aware").size
    mean = {strategy: values.mean() for strategy, values in found.items()}
    assert mean["single-step"] < mean["Redist"] < mean["consistent hashing"]
    assert mean["single-step"] < mean["Storm"]


def test_aware_step_to_node_count_without_history_is_single_step():
    load, state = np.ones(12), np.arange(12.0)
    projected = projected_costs(load, state, {2: {3: 1.0}, 3: {2: 1.0}}, 0.5, 0.8)
    counts = np.array([2, 3, 4])
    to_four = list(_aware(load, state, counts, 0.5, projected))
    start = single_step(load, state, [[0, 12]], 2, 0.5, allow_empty=False)
    to_three = single_step_aware(load, state, start.intervals, 3, 0.5, projected)
    assert to_four[0] == to_three.cost
    assert to_four[1] == single_step(load, state, to_three.intervals, 4, 0.5, allow_empty=False).cost


def test_single_steps_have_median_planning_time_below_50_ms(tables):
    table = tables["13"]
    assert min(table["median_ms"].to_pylist()) > 0
    # The paper's 2 ms hold on an idle machine; here other processes may run as well.
    assert np.median(table["median_ms"].to_numpy()) < 50
    assert set(table["application"].to_pylist()) == set(APPLICATIONS)


def test_single_steps_with_more_tasks_cost_less(tables):
    table = tables["15"]
    assert table["tasks"].to_pylist() == [32, 64, 128]
    cost = table["cost_percent"].to_pylist()
    assert cost[-1] < cost[0]
    assert min(table["median_ms"].to_pylist()) > 0


def test_aware_steps_without_discount_cost_as_single_steps_and_less_with_it(tables):
    table = tables["17"].sort_by([("tau", "ascending"), ("discount", "ascending")])
    cost, single = (np.array(table[name]).reshape(3, 3) for name in ("cost_percent", "single_step_percent"))
    assert (np.array(table["discount"]).reshape(3, 3)[:, 0] == 0).all()
    assert cost[:, 0] == pytest.approx(single[:, 0], rel=0.1)
    assert cost[:, 1:].min(axis=1).sum() < 0.95 * cost[:, 0].sum()
    assert all(seconds > 0 for seconds in table["seconds"].to_pylist())


@pytest.mark.parametrize("figure", FIGURES, ids=lambda figure: figure.name)
def test_figure_with_same_seed_has_same_costs(figure, tables):
    known = tables[figure.name.rsplit("-", 1)[1]]
    again = figure.compute(1, True)
    assert again.drop_columns(list(TIMES & set(again.column_names))).equals(
        known.drop_columns(list(TIMES & set(known.column_names)))
    )


@pytest.mark.parametrize("figure", FIGURES, ids=lambda figure: figure.name)
def test_figure_is_drawn_with_labels_and_legend(figure, tables, tmp_path):
    canvas = Canvas()
    axes = canvas.add_subplot()
    figure.draw(tables[figure.name.rsplit("-", 1)[1]], axes)
    assert axes.get_xlabel()
    assert axes.get_ylabel()
    assert axes.get_legend() is not None
    canvas.savefig(tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 10_000


def test_generated_texts_have_schema_and_skew_of_recording(data_path):
    texts = short_texts(0, 5_000)
    assert texts.schema.equals(SCHEMA)
    assert (np.diff(texts["arrival_ts"].to_numpy()) >= np.timedelta64(0, "us")).all()
    words = pc.utf8_split_whitespace(texts["text"].combine_chunks()).flatten()
    counts = np.sort(pc.value_counts(words).field("counts").to_numpy())[::-1]
    assert 0.13 < counts[:5].sum() / counts.sum() < 0.21
    assert len(counts) <= WORDS
    assert pq.read_schema(data_path("commit_texts/commits.parquet")).remove_metadata().equals(SCHEMA)


def test_applications_count_every_word_and_pair():
    texts = short_texts(0, 500)
    load, state = APPLICATIONS["word count"](texts, 16)
    words = [text.split() for text in texts["text"].to_pylist()]
    assert load.sum() == sum(map(len, words))
    assert state.sum() == sum(len(word) + 16 for word in {word for text in words for word in text})
    load, state = APPLICATIONS["frequent patterns"](texts, 16)
    pairs = [
        frozenset((text[place], other))
        for text in words
        for place in range(len(text))
        for other in text[place + 1 : place + 4]
        if other != text[place]
    ]
    assert load.sum() == len(pairs)
    assert state.sum() == 16 * len(set(pairs))


def test_figures_of_given_recording_are_computed(data_path):
    texts = pq.read_table(data_path("commit_texts/commits.parquet"))
    day = np.timedelta64(1, "D")
    given = Source(texts, interval=day, history=180 * day)
    story = given.story(given.table(0, True), 2, 4, 30)
    assert len(story.counts) == 31
    assert set(story.counts.tolist()) <= set(story.matrix)
    table = figures(given)[4].compute(0, True)
    assert table["migrations"].to_pylist() == [40] * 9
