from __future__ import annotations

import pyarrow as pa
import pytest

import dask_elastic as de
from dask_elastic.migration.strategy import BETWEEN_EXECUTORS, check_group_strategy, check_names, check_strategy
from dask_elastic.runtime.config.job_options import job_options
from dask_elastic.vocab.errors import SubmitError


def computed(window=None, logic=None, **options):
    topology = de.Topology("moved")
    keyed = topology.source("rows", de.sources.Iterable(lambda: [], event_time="at")).key_by("key")
    logic = logic or {"rows": de.aggregate.Count()}
    (keyed if window is None else keyed.window(window)).compute(logic, name="counted", **options)
    return [topology.operator("counted")]


def joined():
    topology = de.Topology("moved")
    first, second = (
        topology.source(name, de.sources.Iterable(lambda: [], event_time="at")).key_by("key") for name in ("one", "two")
    )
    schema = {"key": pa.string(), "at": pa.timestamp("us")}
    first.join(second, within=("-1s", "1s"), name="counted", left_schema=schema, right_schema=schema)
    return [topology.operator("counted")]


def rows_of(rows, instances):
    return rows


@pytest.mark.parametrize(
    ("computes", "reason"),
    [
        (computed(), "has no windows"),
        (computed(de.windows.session("1s")), "sessions with a gap of 1s"),
        (computed(de.windows.count(5)), "no fixed spans of event time"),
        (computed("1s", allowed_lateness="1s"), "corrects results"),
        (computed("1s", emit="updates"), "corrects results"),
        (computed("1s", rows_of), "runs a function over its windows"),
        (joined(), "is a join"),
    ],
)
def test_instant_moves_of_state_that_is_not_merged_are_refused(computes, reason):
    with pytest.raises(SubmitError, match=f"'instant', but 'counted' .*{reason}.*pass migration='labelled'"):
        check_strategy("instant", computes)
    check_strategy("labelled", computes)
    check_strategy("disruptive", computes)


def test_instant_moves_of_windows_are_allowed_unless_fused():
    computes = computed("1s") + computed(de.windows.hopping("10s", "1s"))
    check_strategy("instant", computes)
    with pytest.raises(SubmitError, match=r"'counted' runs in the tasks of another compute.*pass fuse=False"):
        check_strategy("instant", computes, computed("1s"))


@pytest.mark.parametrize("strategy", BETWEEN_EXECUTORS)
def test_strategies_of_key_groups_are_refused_for_shards_and_the_other_way_round(strategy):
    check_group_strategy(strategy)
    with pytest.raises(SubmitError, match=f"'{strategy}' moves key groups.*resource-centric.*'labelled', 'instant'"):
        check_strategy(strategy, [])
    with pytest.raises(SubmitError, match=f"'labelled' moves shards.*pass .*'{strategy}'"):
        check_group_strategy("labelled")
    with pytest.raises(
        SubmitError, match=r"^migration='labeled': with paradigm='resource-centric' choose 'progressive'"
    ):
        check_group_strategy("labeled")


def test_smooth_moves_are_refused_as_instant_ones_and_chosen_moves_never():
    for strategy in ("instant", "smooth"):
        with pytest.raises(SubmitError, match=f"'{strategy}', but 'counted' has no windows"):
            check_strategy(strategy, computed())
    check_strategy("auto", computed())
    check_group_strategy("auto")
    check_strategy("auto", computed("1s"), computed("1s"))


def test_names_of_other_operators_are_refused():
    check_names(["counted"], ["counted"])
    with pytest.raises(SubmitError, match="migration names 'rows', but the computes are 'counted'"):
        check_names(["rows"], ["counted"])
    with pytest.raises(SubmitError, match=r"'behind', which runs in the tasks of another compute.*pass fuse=False"):
        check_names(["behind"], ["counted"], ["behind"])


def test_strategies_are_those_of_named_computes():
    options = job_options({"migration": {"hot": "smooth"}})
    assert (options.strategy("hot"), options.strategy("cold")) == ("smooth", "labelled")
    assert job_options({"migration": "auto"}).strategy("hot") == "auto"
    with pytest.raises(SubmitError, match=r"of 'hot' is 'smoth': choose from .*did you mean 'smooth'"):
        job_options({"migration": {"hot": "smoth"}})


def test_cores_that_name_no_operator_are_refused_by_name():
    from dask_elastic.runtime.client.submission.described_job import checked_job

    topology = de.Topology("made")
    rows = topology.source("rows", de.sources.Arrow(pa.table({"k": [1]})))
    rows.key_by("k").compute({"n": de.aggregate.Count()}, name="counted")
    with pytest.raises(SubmitError, match=r"^cores=2: give the cores of single operators, as cores=\{'per_key': 2\}"):
        checked_job(topology, None, 2, False, {})
