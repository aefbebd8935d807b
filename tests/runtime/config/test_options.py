"""Options of a job: from the call, else from Dask's configuration, and always checked."""

from __future__ import annotations

import os
import re
import warnings

import dask.config
import pytest
from dask.utils import parse_timedelta

import dask_elastic as de
from dask_elastic.control.placement.settings import PlacementSettings
from dask_elastic.control.settings import ControlSettings
from dask_elastic.runtime.config.control_options import ControlOptions, control_options
from dask_elastic.runtime.config.defaults import load_defaults
from dask_elastic.runtime.config.job_options import NAMES, job_options
from dask_elastic.runtime.config.worker_options import worker_options
from dask_elastic.runtime.protocol.codec import decode, encode
from dask_elastic.runtime.protocol.job_spec import ComponentSummary, JobSpec
from dask_elastic.runtime.protocol.remote_errors import Relayed, dump_error, load_error
from dask_elastic.vocab.errors import SubmitError, UserCodeError
from dask_elastic.vocab.identity import ExecutorId


def test_option_overrides_configuration_which_overrides_defaults():
    assert job_options({}).inbox_time == 0.005
    with dask.config.set({"elastic.inbox-time": "7ms", "elastic.channel-window": "1MiB"}):
        assert job_options({}).inbox_time == 0.007
        assert job_options({}).channel_window == 2**20
        assert job_options({"inbox_time": 0.5, "channel_window": 10}).inbox_time == 0.5


def test_submit_documents_every_option():
    described = de.submit.__doc__
    assert [name for name in NAMES if f"``{name}``" not in described] == []


def test_durations_and_sizes_accept_texts_and_numbers():
    made = job_options({"flush_interval": "2 minutes", "report_interval": 1, "channel_window": "2 kB"})
    assert (made.flush_interval, made.report_interval, made.channel_window) == (120.0, 1.0, 2_000)


def test_strategy_of_key_groups_is_progressive_unless_it_is_named():
    resource = {"paradigm": "resource-centric"}
    assert job_options(resource).strategy("counted") == "progressive"
    assert job_options({**resource, "migration": "auto"}).strategy("counted") == "auto"
    for configured, strategy in (("instant", "progressive"), ("auto", "auto"), ("synchronised", "synchronised")):
        with dask.config.set({"elastic.migration": configured}):
            assert job_options(resource).strategy("counted") == strategy


def test_unknown_placement_is_refused_with_list_of_placements():
    with pytest.raises(SubmitError, match=r"'albic', .*'cola', .*'ssm'.*; did you mean 'albic'"):
        job_options({"placement": "albik"})
    assert [job_options({"placement": name}).placement for name in ("spread", "mtm")] == ["spread", "mtm"]


@pytest.mark.parametrize("name", NAMES)
def test_every_option_refuses_a_wrong_value_by_name(name):
    with pytest.raises(SubmitError, match=name):
        # Any text may be the name of a folder.
        job_options({name: 7 if name == "checkpoint" else "nonsense"})


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("inbox_time", 0),
        ("inbox_time", "-1s"),
        ("balance_threshold", 0.5),
        ("light_load", -0.1),
        ("light_load", "nan"),
        ("channel_window", 0),
        ("state_memory", 40),
        ("longest_tick", "50ms"),
        ("longest_tick", 0),
    ],
)
def test_values_out_of_range_are_refused(option, value):
    with pytest.raises(SubmitError, match=option):
        job_options({option: value})


def test_unknown_option_error_names_nearest_option_or_all():
    with pytest.raises(SubmitError, match="did you mean 'flush_interval'"):
        job_options({"flush_intervall": 1})
    with pytest.raises(SubmitError, match="no option 'zzz': The options are on_error"):
        job_options({"zzz": 1})


def test_unknown_option_in_the_configuration_is_warned_of_with_the_nearest_one():
    collected = dask.config.collect(paths=[], env={"DASK_ELASTIC__CONTROL_PERIODS": "2s", "DASK_ELASTIC__ZZZ": "1"})
    with dask.config.set(collected), pytest.warns(UserWarning, match="no option") as warned:
        load_defaults()
    assert sorted(str(one.message) for one in warned) == [
        "Dask's configuration has elastic.control-periods, which is no option: did you mean elastic.control-period?",
        "Dask's configuration has elastic.zzz, which is no option",
    ]
    with warnings.catch_warnings(action="error"):
        load_defaults()


@pytest.mark.parametrize(
    ("option", "value", "match"),
    [
        ("planner", "elasticuter", "choose from 'elasticutor', 'naive'; did you mean 'elasticutor'?"),
        ("paradigm", "executor_centric", "did you mean 'executor-centric'?"),
        ("paradigm", None, None),
        ("latency_target", "50 parsecs", "latency_target='50 parsecs' is not a duration such as '50ms'"),
        ("latency_target", 0, "must be above zero"),
        ("latency_target", float("inf"), "must be above zero"),
        ("latency_target", True, "is not a duration"),
        ("channel_window", "much", "channel_window='much' is not a size such as '32MiB'"),
        ("dry_run", 1, "give True or False"),
        ("dry_run", "yes", "give True or False"),
    ],
)
def test_wrong_value_error_names_option_and_nearest_value(option, value, match):
    if match is None:
        assert job_options({option: value}) == job_options({})
        return
    with pytest.raises(SubmitError, match=re.escape(match)) as refusal:
        job_options({option: value})
    assert len(str(refusal.value)) < 130


def test_latency_target_none_is_accepted_as_option_and_configuration():
    assert job_options({}).latency_target == 0.1
    assert job_options({"latency_target": "20ms"}).latency_target == 0.02
    assert job_options({"latency_target": None}).latency_target is None
    with dask.config.set({"elastic.latency-target": None}):
        assert job_options({}).latency_target is None
        assert job_options({"latency_target": 2}).latency_target == 2.0


@pytest.mark.parametrize("value", [True, "true", "True"])
def test_flag_is_read_from_the_environment(value):
    assert job_options({}).dry_run is False
    with dask.config.set({"elastic.dry-run": value}):
        assert job_options({}).dry_run is True
        assert job_options({"dry_run": False}).dry_run is False


def test_tests_have_the_timeouts_of_their_environment():
    found = worker_options().heartbeat_timeout, job_options({}).light_load
    assert found == (parse_timedelta(os.environ["DASK_ELASTIC__HEARTBEAT_TIMEOUT"]), 0.0)


def test_shipped_control_options_equal_control_defaults():
    assert control_options() == ControlOptions(1.0, ControlSettings())
    with dask.config.set({"elastic.control-period": 0.5, "elastic.control-budget": "1MiB"}):
        assert control_options().period == 0.5
        assert control_options().settings.budget_bytes == 2**20
    with dask.config.set({"elastic.placement-period": "2s", "elastic.placement-max-moves": 7}):
        assert control_options().placement == PlacementSettings(period=2.0, max_moves=7)
    for wrong in (
        {"elastic.placement-period": 0},
        {"elastic.placement-max-moves": 1.5},
        {"elastic.retire-timeout": -1},
    ):
        with dask.config.set(wrong), pytest.raises(SubmitError, match=next(iter(wrong))):
            control_options()


def test_joining_node_takes_first_vacant_place_and_leaving_node_frees_one():
    spec = JobSpec("job", 1, ("a", "b"), 0, (), {"s": (0,)}, {}, job_options({}))
    grown = spec.with_guest("c").with_guest("d")
    assert (grown.nodes, grown.guests) == (("a", "b", "c", "d"), (2, 3))
    left = grown.without("c")
    assert (left.nodes, left.guests, left.members) == (("a", "b", "", "d"), (3,), ((0, "a"), (1, "b"), (3, "d")))
    assert left.places == {"a": 0, "b": 1, "d": 3}
    assert (left.with_guest("e").nodes, left.with_guest("e").guests) == (("a", "b", "e", "d"), (3, 2))
    assert decode(JobSpec, encode(JobSpec, grown)) == grown
    assert spec.settled == {0}


def test_job_spec_round_trips_through_the_wire():
    summaries = (
        ComponentSummary("s", "source", (), ("s", "tidy"), 2, 1),
        ComponentSummary("c", "compute", ("s",), ("c",), None, 16),
        ComponentSummary("out", "sink", ("c",), ("out",), None, 1),
    )
    homes = {"s": (0, 1), "c": (1, 0)}
    spec = JobSpec("job", 4, ("a", "b"), 1, summaries, homes, {"c": ({1: 2, 0: 1}, {0: 1})}, job_options({}))
    assert decode(JobSpec, encode(JobSpec, spec)) == spec
    assert spec.generation_id == ("job", 4)
    assert spec.inputs_of("c") == [ExecutorId("s", 0), ExecutorId("s", 1)]
    assert spec.sink_inputs("out", 0) == [ExecutorId("c", 1)]
    assert spec.node_of(ExecutorId("out", 1)) == 1


def test_errors_are_sent_as_bytes():
    error = load_error(dump_error(UserCodeError("tidy", "ValueError: x", 3, trace="in f")))
    assert isinstance(error, UserCodeError)
    assert (error.operator, error.batch) == ("tidy", 3)
    assert dump_error(Relayed(b"bytes")) == b"bytes"


def test_unpicklable_error_is_sent_as_text():
    class Stubborn(Exception):
        def __reduce__(self):
            raise TypeError("never")

    assert "Stubborn: so" in str(load_error(dump_error(Stubborn("so"))))
