"""Options of a job: from the call, else from Dask's configuration, and always checked."""

from __future__ import annotations

import dask.config
import pytest

from dask_elastic.runtime.job_spec import ComponentSummary, JobOptions, JobSpec
from dask_elastic.runtime.options import NAMES, job_options
from dask_elastic.runtime.report import Relayed, dump_error, load_error
from dask_elastic.vocab.errors import SubmitError, UserCodeError
from dask_elastic.vocab.identity import ExecutorId


def test_what_is_given_wins_over_the_configuration_and_that_over_the_defaults():
    assert job_options({}).inbox_time == 0.005
    with dask.config.set({"elastic.inbox-time": "7ms", "elastic.channel-window": "1MiB"}):
        assert job_options({}).inbox_time == 0.007
        assert job_options({}).channel_window == 2**20
        assert job_options({"inbox_time": 0.5, "channel_window": 10}).inbox_time == 0.5


def test_durations_and_sizes_are_texts_or_numbers():
    made = job_options({"flush_interval": "2 minutes", "report_interval": 1, "channel_window": "2 kB"})
    assert (made.flush_interval, made.report_interval, made.channel_window) == (120.0, 1.0, 2_000)


@pytest.mark.parametrize("name", NAMES)
def test_every_option_refuses_nonsense_by_name(name):
    with pytest.raises(SubmitError, match=name):
        job_options({name: "nonsense"})


@pytest.mark.parametrize(
    ("option", "value"), [("inbox_time", 0), ("inbox_time", "-1s"), ("balance_threshold", 0.5), ("channel_window", 0)]
)
def test_values_out_of_range_are_refused(option, value):
    with pytest.raises(SubmitError, match=option):
        job_options({option: value})


def test_an_unknown_option_names_the_nearest_or_all():
    with pytest.raises(SubmitError, match="did you mean 'flush_interval'"):
        job_options({"flush_intervall": 1})
    with pytest.raises(SubmitError, match="no option 'zzz': The options are on_error"):
        job_options({"zzz": 1})


def test_a_spec_is_the_same_after_its_way_to_a_worker():
    summaries = (
        ComponentSummary("s", "source", (), ("s", "tidy"), 2, 1),
        ComponentSummary("c", "compute", ("s",), ("c",), None, 16),
        ComponentSummary("out", "sink", ("c",), ("out",), None, 1),
    )
    homes = {"s": (0, 1), "c": (1, 0)}
    spec = JobSpec("job", 4, ("a", "b"), 1, summaries, homes, {"c": ({1: 2, 0: 1}, {0: 1})}, job_options({}))
    message = spec.to_message()
    assert JobSpec.from_message(message) == spec
    assert isinstance(spec.options, JobOptions)
    assert spec.run == ("job", 4)
    assert spec.inputs_of("c") == [ExecutorId("s", 0), ExecutorId("s", 1)]
    assert spec.sink_inputs("out", 0) == [ExecutorId("c", 1)]
    assert spec.node_of(ExecutorId("out", 1)) == 1


def test_errors_travel_as_bytes():
    error = load_error(dump_error(UserCodeError("tidy", "ValueError: x", 3, trace="in f")))
    assert isinstance(error, UserCodeError)
    assert (error.operator, error.batch) == ("tidy", 3)
    assert dump_error(Relayed(b"bytes")) == b"bytes"


def test_an_error_that_cannot_be_pickled_travels_as_text():
    class Stubborn(Exception):
        def __reduce__(self):
            raise TypeError("never")

    assert "Stubborn: so" in str(load_error(dump_error(Stubborn("so"))))
