"""Every notebook in examples/ runs from the first cell to the last, and is committed without outputs."""

from __future__ import annotations

import os
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))


WAIT = """
import threading
[thread.join(60) for thread in threading.enumerate() if thread.name == "job-card"]
"""
"""A cell before the last one, which closes the client: until then, threads update their cards to the end of the job."""


def outputs(notebook, source):
    """Return the outputs of the cell whose code begins with a text, by MIME type."""
    [cell] = [cell for cell in notebook.cells if cell.cell_type == "code" and cell.source.startswith(source)]
    return [output["data"] for output in cell.outputs if "data" in output]


@pytest.fixture(scope="module")
def executed(tmp_path_factory):
    """Return a function that executes a notebook, each one once."""
    done = {}

    def execute(path):
        if path not in done:
            notebook = nbformat.read(path, as_version=4)
            notebook.cells.insert(-1, nbformat.v4.new_code_cell(WAIT))
            here = [str(ROOT), str(ROOT / "plugins"), *filter(None, [os.environ.get("PYTHONPATH")])]
            place = {"metadata": {"path": str(tmp_path_factory.mktemp("notebook"))}}
            client = NotebookClient(notebook, timeout=200, kernel_name="python3", resources=place)
            client.execute(env={**os.environ, "PYTHONPATH": os.pathsep.join(here)})
            done[path] = notebook
        return done[path]

    return execute


@pytest.mark.timeout(300)
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_notebook_runs_without_error(path, executed):
    assert all(output.output_type != "error" for cell in executed(path).cells for output in cell.get("outputs", []))


@pytest.mark.timeout(300)
def test_first_hour_draws_the_topology_and_shows_state_and_card(executed):
    notebook = executed(ROOT / "examples" / "first_hour.ipynb")
    [drawing] = outputs(notebook, "import time")
    assert "<svg" in drawing["text/html"]
    [state] = outputs(notebook, "state = job.state")
    assert "<td>N" in state["text/html"]
    [live] = outputs(notebook, "job = de.submit")
    # The thread has updated the card of an earlier cell.
    assert "flight-delays: finished" in live["text/html"]
    assert "/elastic?job=flight-delays" in live["text/html"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_notebook_is_committed_without_outputs(path):
    cells = [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
    assert [cell.source for cell in cells if cell.outputs or cell.execution_count is not None] == []
