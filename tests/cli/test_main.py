from __future__ import annotations

import errno
import importlib
import re
import subprocess
import sys
import tomllib
import types
from importlib.metadata import EntryPoint
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from dask_elastic import __version__
from dask_elastic.cli.lazy_group import LazyCommand, LazyGroup
from dask_elastic.cli.main import COMMANDS, elastic
from dask_elastic.vocab.errors import PlanningError


def test_help_lists_every_command_with_its_summary(invoke):
    shown = invoke("--help")
    assert shown.exit_code == 0
    for name, entry in COMMANDS.items():
        assert re.search(rf"^  {name} +{re.escape(entry.summary)}$", shown.output, re.MULTILINE), name


def test_help_imports_no_command():
    code = (
        "import sys\nfrom dask_elastic.cli.main import elastic, COMMANDS\n"
        "elastic(['--help'], standalone_mode=False)\n"
        "print([entry.module for entry in COMMANDS.values() if entry.module in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_can_be_imported(name):
    entry = COMMANDS[name]
    assert isinstance(getattr(importlib.import_module(entry.module), entry.attribute), click.Command)


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_help_of_each_command_has_an_example_on_its_own_line(invoke, name):
    shown = invoke(name, "--help")
    assert shown.exit_code == 0
    assert re.search(rf"^ +dask elastic {name}", shown.output, re.MULTILINE), shown.output


def test_version(invoke):
    assert invoke("--version").output == f"dask_elastic, version {__version__}\n"


def test_unknown_command_is_refused_with_a_suggestion(invoke):
    refused = invoke("statsu")
    assert refused.exit_code == 2
    assert "No such command 'statsu'. Did you mean 'status'?" in refused.output


@pytest.fixture
def broken(monkeypatch):
    """Return a function that runs a command which raises."""

    def run(error):
        @click.command()
        def fails():
            raise error

        module = types.ModuleType("broken_command")
        module.fails = fails
        monkeypatch.setitem(sys.modules, "broken_command", module)
        group = LazyGroup("broken", lazy_commands={"fails": LazyCommand("broken_command", "fails", "Raise.")})
        return CliRunner().invoke(group, ["fails"])

    return run


@pytest.mark.parametrize("error", [PlanningError("theta=0.5: at least 1"), OSError("no space left")])
def test_expected_error_is_printed_in_one_line(broken, error):
    ended = broken(error)
    assert ended.exit_code == 1
    assert ended.output == f"Error: {error}\n"


def test_reader_that_ends_early_is_no_error_message(broken):
    ended = broken(BrokenPipeError(errno.EPIPE, "Broken pipe"))
    assert (ended.exit_code, ended.output) == (1, "")


def test_unexpected_error_keeps_its_traceback(broken):
    error = KeyError("a bug")
    assert broken(error).exception is error


def test_ctrl_c_exits_with_130(broken):
    assert broken(KeyboardInterrupt()).exit_code == 130


def test_elastic_is_a_click_group():
    assert isinstance(elastic, click.Group)
    assert elastic.name == "elastic"


def test_entry_point_of_dask_cli_loads_the_group():
    project = tomllib.loads(Path(__file__).parents[2].joinpath("pyproject.toml").read_text(encoding="utf-8"))
    [(name, place)] = project["project"]["entry-points"]["dask_cli"].items()
    assert (name, EntryPoint(name, place, "dask_cli").load()) == ("elastic", elastic)
