"""Errors of user code: what the text names, and whose frames it shows."""

from __future__ import annotations

import pyarrow as pa
import pytest

import dask_elastic as de
from dask_elastic.testing import run
from dask_elastic.vocab.errors import UserCodeError

ROWS = pa.table({"key": [1]})


def text_of(function):
    """Return the text of the error that a function in a map causes."""
    topology = de.Topology("rows")
    mapped = topology.source("rows", de.sources.Arrow(ROWS)).map(function, name="enrich")
    mapped.sink(de.sinks.Collect(), name="out")
    with pytest.raises(UserCodeError) as caught:
        run(topology)
    return str(caught.value)


def test_frames_of_a_program_in_a_folder_named_as_the_package_are_shown(tmp_path):
    program = tmp_path / "dask_elastic" / "my_job.py"
    found = {}
    exec(compile("def enrich(rows):\n    return 1 / 0", str(program), "exec"), found)
    text = text_of(found["enrich"])
    assert "ZeroDivisionError" in text
    assert text.count("File ") == 1
    assert f'File "{program}", line 2, in enrich' in text


def test_error_that_a_check_raises_has_no_frames_and_one_full_stop():
    text = text_of(lambda rows: 5)
    assert text.startswith("operator 'enrich', batch 0: TypeError: map 'enrich' returned an int; return a pyarrow ")
    assert text.endswith(
        'or None. Fix the function, or submit with on_error="skip" to move such rows to the dead letters.'
    )
