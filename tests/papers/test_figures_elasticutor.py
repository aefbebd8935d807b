from __future__ import annotations

from dask_elastic.papers.figures import elasticutor


def test_scheduling_time_grows_with_nodes_and_stays_below_100_ms():
    table = elasticutor.FIGURES[0].compute(1, True).to_pandas()
    assert table.groupby("nodes")["executors"].first().to_dict() == {8: 24, 16: 48, 32: 96}
    assert (table["milliseconds"] > 0).all()
    middle = table.groupby("nodes")["milliseconds"].median()
    assert middle[8] < middle[32] < 100
    assert table["moved_share"].between(0, 0.5).all()
    assert (table["moved_share"] > 0).any()


def test_scheduling_time_with_same_seed_has_same_assignments():
    first, again = (elasticutor.scheduling_time(2, True).drop_columns(["milliseconds"]) for _ in range(2))
    assert first.equals(again)
