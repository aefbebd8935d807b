"""Options are parsed in one way: every kind names the option, the value and what it takes."""

from __future__ import annotations

import re

import dask.config
import numpy as np
import pytest

from dask_elastic.runtime.client.job_input import seconds_of
from dask_elastic.runtime.config.parsing import Amount, Choice, Duration, Flag, Folder, Option, Size, configured
from dask_elastic.vocab.errors import SubmitError


@pytest.mark.parametrize(
    ("kind", "value", "parsed"),
    [
        (Flag(), True, True), (Flag(), "FALSE", False), (Choice(("a", "b")), "b", "b"), (Amount(), "1.5", 1.5),
        (Amount(least=1), 1, 1.0), (Amount(positive=False), -2, -2.0), (Duration(), "50ms", 0.05), (Duration(), 3, 3.0),
        (Duration(positive=False), 0, 0.0), (Size(), "2 KiB", 2048), (Size(), 10.5, 10),
        (Size(), np.int64(7), 7), (Size(), np.float32(2.5), 2),
    ],
)  # fmt: skip
def test_valid_option_value_is_parsed(kind, value, parsed):
    assert Option("name", kind).parse(value, "name") == parsed


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        (Flag(), 1, "=1: give True or False"),
        (Flag(), "yes", "='yes': give True or False"),
        (Choice(("fail", "skip")), "skipp", "='skipp': choose from 'fail', 'skip'; did you mean 'skip'?"),
        (Choice(("fail", "skip")), 7, "=7: choose from 'fail', 'skip'"),
        (Amount(), "x", "='x' is not a number"),
        (Amount(), True, "=True is not a number"),
        (Amount(), 0, "=0 must be above zero"),
        (Amount(least=1), 0.5, "=0.5 must be at least 1"),
        (Amount(most=1), 40, "=40 must be at most 1"),
        (Amount(), None, "=None is not a number"),
        (Duration(), "soon", "='soon' is not a duration such as '50ms'"),
        (Duration(), float("nan"), "=nan must be above zero"),
        (Size(), "much", "='much' is not a size such as '32MiB'"),
        (Size(), float("inf"), "=inf is not a size such as '32MiB'"),
        (Size(), [1], "=[1] is not a size such as '32MiB'"),
        (Size(), np.bool_(True), f"={np.bool_(True)!r} is not a size such as '32MiB'"),
        (Folder(), "", "='' is neither a path nor a URL"),
        (Folder(), " ", "=' ' is neither a path nor a URL"),
        (Folder(), b"x", "=b'x' is neither a path nor a URL"),
    ],
)
def test_invalid_option_value_error_states_accepted_values(kind, value, text):
    with pytest.raises(SubmitError, match=re.escape(f"name{text}") + "$"):
        Option("name", kind).parse(value, "name")


def test_none_is_accepted_for_optional_options_only():
    assert Option("name", Duration(), optional=True).parse(None, "name") is None
    with pytest.raises(SubmitError, match="name=None is not a duration"):
        Option("name", Duration()).parse(None, "name")


def test_configuration_options_are_read_and_errors_name_their_path():
    options = [Option("some_time", Duration()), Option("bytes", Size(), key="some-bytes")]
    with dask.config.set({"elastic.some-time": "2s", "elastic.some-bytes": "1KiB"}):
        assert configured(options) == {"some_time": 2.0, "bytes": 1024}
    with (
        dask.config.set({"elastic.some-time": "2s", "elastic.some-bytes": "many"}),
        pytest.raises(SubmitError, match=r"elastic\.some-bytes='many' is not a size"),
    ):
        configured(options)


@pytest.mark.parametrize(("timeout", "seconds"), [(None, None), (0, 0.0), ("30s", 30.0), (float("inf"), float("inf"))])
def test_timeout_of_a_call_is_seconds_or_a_duration(timeout, seconds):
    assert seconds_of(timeout) == seconds


@pytest.mark.parametrize("timeout", ["soon", [], -1, float("nan")])
def test_timeout_of_a_call_that_is_no_duration_is_a_value_error(timeout):
    with pytest.raises(ValueError, match=re.escape(f"timeout is {timeout!r}")):
        seconds_of(timeout)
