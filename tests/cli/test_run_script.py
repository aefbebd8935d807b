from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

import dask_elastic as de
from dask_elastic.runtime.client.progress import Progress

ROOT = Path(__file__).parents[2]

JOB = """
import sys
import numpy as np
import pyarrow as pa
import dask_elastic as de
from dask_elastic import aggregate as agg

def topology(name, rate=None):
    made = de.Topology(name)
    rows = pa.table({"key": np.arange(1000) % 7})
    made.source("rows", de.sources.Arrow(rows, rate=rate, batch_rows=100)).map(change).key_by("key").compute(
        {"count": agg.Count()}, name="per_key", executors=1
    )
    return made

def change(batch):
    return batch
"""


@pytest.fixture
def script(tmp_path):
    """Return a function that writes a script: the definition of `topology`, then the given body."""

    def write(body, name="script.py"):
        path = tmp_path / name
        path.write_text(JOB + textwrap.dedent(body))
        return path

    return write


@pytest.fixture
def run(invoke, address, client):
    """Return a function that runs a script on the shared cluster."""

    def run_there(*arguments):
        return invoke("run", "--scheduler", address, *arguments)

    return run_there


def test_script_that_only_submits_runs_its_job_to_the_end(run, script, client):
    ended = run(script("de.submit(topology('short'))"))
    assert ended.exit_code == 0, ended.output
    assert ended.stdout == ""
    page, last = ended.stderr.splitlines()
    assert page.startswith("Dashboard: http://")
    assert last.startswith("short: finished")
    counts = de.job("short", client).state("per_key").to_pandas()["count"]
    assert counts.sum() == 1000


def test_script_runs_as_main_with_arguments_and_import_path(run, script, tmp_path):
    (tmp_path / "beside_the_script.py").write_text("VALUE = 42\n")
    before = [*sys.argv], [*sys.path]
    ended = run(script("import beside_the_script as b\nprint(__name__, __file__, sys.argv[1:], b.VALUE)"), "a", "b c")
    assert ended.stdout == f"__main__ {tmp_path / 'script.py'} ['a', 'b c'] 42\n"
    assert ([*sys.argv], [*sys.path]) == before


def test_unknown_options_are_passed_to_the_script(run, script):
    ended = run(script("print(sys.argv[1:])"), "--rate", "5", "-v", "--", "--workers", "3")
    assert ended.stdout == "['--rate', '5', '-v', '--workers', '3']\n"


def test_traceback_of_script_has_only_its_own_frames(run, script):
    path = script("def divide():\n    1 / 0\ndivide()")
    ended = run(path)
    assert ended.exit_code == 1
    frames = [line for line in ended.stderr.splitlines() if line.strip().startswith("File ")]
    assert len(frames) == 2
    assert all(f'"{path}"' in frame for frame in frames)
    assert ended.stderr.endswith("ZeroDivisionError: division by zero\n")


def test_script_with_syntax_error_shows_it(run, script):
    ended = run(script("def"))
    assert ended.exit_code == 1
    assert "SyntaxError" in ended.stderr
    assert "runpy" not in ended.stderr


def test_elastic_error_in_script_is_one_line_with_its_location(run, script):
    path = script("de.submit(topology('short'), inboxtime='2ms')")
    line = len(path.read_text().splitlines())
    ended = run(path)
    assert ended.exit_code == 1
    assert ended.stderr.splitlines()[1].startswith(f"Error: {path}, line {line}: there is no option 'inboxtime'")
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize(("argument", "code", "message"), [("3", 3, ""), ("'no data'", 1, "no data\n"), ("", 0, "")])
def test_exit_code_of_script_is_kept(run, script, argument, code, message):
    ended = run(script(f"sys.exit({argument})"))
    assert ended.exit_code == code
    assert ended.stderr.partition("\n")[2] == message


def test_failed_job_is_reported(run, script):
    body = """
    def change(batch):
        raise ValueError("a bad row")
    de.submit(topology("fails"))
    """
    ended = run(script(body))
    assert ended.exit_code == 1
    [error] = [line for line in ended.stderr.splitlines() if line.startswith("Error")]
    assert error.startswith("Error: job 'fails' failed: operator 'change', batch 0: ValueError: a bad row")


def test_jobs_stopped_or_forgotten_by_the_script_are_not_failures(run, script, client):
    body = """
    de.submit(topology("stopped", rate=10)).stop()
    de.submit(topology("forgotten", rate=10)).forget()
    """
    assert run(script(body)).exit_code == 0
    assert {job.name: job.status for job in de.jobs(client)} == {"stopped": "stopped"}


def test_job_stopped_by_another_client_is_a_failure(run, script, client, monkeypatch):
    awaited = threading.Event()

    class Shown(Progress):
        def show(self, described):
            super().show(described)
            awaited.set()

    # Before the command waits, the script itself could have stopped the job.
    monkeypatch.setattr("dask_elastic.cli.followed_jobs.Progress", Shown)

    def stop():
        assert awaited.wait(60)
        de.job("victim", client).stop()

    other = threading.Thread(target=stop)
    other.start()
    ended = run(script("de.submit(topology('victim', rate=10))"))
    other.join()
    assert ended.exit_code == 1
    assert ended.stderr.splitlines()[-1] == "Error: job 'victim' was stopped"


def test_run_does_not_wait_for_jobs_of_other_clients(run, script, endless):
    other = endless("others")
    assert run(script("de.submit(topology('own'))")).exit_code == 0
    assert other.status == "running"


def test_detach_leaves_the_job_running(run, script, client, address):
    ended = run(script("de.submit(topology('long', rate=10))"), "--detach")
    assert ended.exit_code == 0
    assert "Job 'long' continues" in ended.stderr
    assert f"dask elastic stop long --scheduler {address}" in ended.stderr
    assert de.job("long", client).status == "running"


@pytest.mark.parametrize("where", ["script", "command"])
def test_ctrl_c_leaves_the_job_running_and_prints_how_to_stop_it(run, script, client, address, monkeypatch, where):
    body = "de.submit(topology('long', rate=10))\n"
    if where == "script":
        body += "raise KeyboardInterrupt\n"
    else:
        monkeypatch.setattr("dask_elastic.cli.run.wait", interrupt)
    ended = run(script(body))
    assert ended.exit_code == 130
    assert f"Job 'long' continues at {address}" in ended.stderr
    assert f"dask elastic stop long --scheduler {address}" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert de.job("long", client).status == "running"


def interrupt(*arguments, **options):
    raise KeyboardInterrupt


@pytest.mark.parametrize("own", ["--workers", "--threads"])
def test_options_of_local_cluster_with_scheduler_are_refused(run, script, own):
    refused = run(script(""), own, 2)
    assert refused.exit_code == 2
    assert own in refused.output


def test_detach_without_scheduler_is_refused(invoke, script):
    refused = invoke("run", script(""), "--detach")
    assert refused.exit_code == 2
    assert "--detach needs a running scheduler" in refused.output


def test_missing_script_is_wrong_usage(run, tmp_path):
    assert run(tmp_path / "none.py").exit_code == 2


def start(path, *arguments):
    here = [str(ROOT), str(ROOT / "plugins"), *filter(None, [os.environ.get("PYTHONPATH")])]
    return subprocess.Popen(
        [sys.executable, "-c", "from dask_elastic.cli.main import elastic; elastic(prog_name='dask elastic')", "run",
         str(path), *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(here), "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # A shell's background jobs ignore Ctrl-C, and so would their children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip


def alive(group):
    listed = subprocess.run(["ps", "-A", "-o", "pgid=,stat="], capture_output=True, text=True, check=True).stdout
    members = [line.split() for line in listed.splitlines()]
    return [stat for pgid, stat in members if int(pgid) == group and not stat.startswith("Z")]


def ends_soon(group):
    deadline = time.monotonic() + 100
    while alive(group) and time.monotonic() < deadline:
        time.sleep(0.1)
    return not alive(group)


MODULE = """
import pyarrow.compute as pc

def change(batch):
    return batch.filter(pc.equal(batch["key"], 0))
"""


def test_local_cluster_imports_modules_beside_the_script(script, tmp_path):
    (tmp_path / "beside_it.py").write_text(MODULE)
    body = """
    import beside_it
    change = beside_it.change
    job = de.submit(topology("own"))
    job.wait()
    print(job.state("per_key").to_pandas()["count"].sum(), len(job.client.nthreads()))
    """
    process = start(script(body), "--workers", "2", "--threads", "1", "--dashboard-address", ":0")
    output, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    assert output == "143 2\n"
    assert ends_soon(process.pid)


def test_ctrl_c_ends_all_processes_of_the_local_cluster(script):
    path = script("de.submit(topology('long', rate=10))\nprint('submitted')")
    process = start(path, "--workers", "1", "--threads", "1", "--dashboard-address", ":0")
    assert process.stdout.readline() == "submitted\n"
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 130, errors
    assert errors.splitlines()[-1] == "Job 'long' was stopped with the local cluster of this command."
    assert ends_soon(process.pid)


def test_ctrl_c_ends_workers_whose_user_code_goes_on_and_prints_one_line(script):
    body = """
    import os
    import time

    def change(batch):
        os.write(1, b"changing\\n")
        time.sleep(60)
        return batch

    job = de.submit(topology("long", rate=1_000))
    os.write(1, b"submitted\\n")
    job.wait()
    """
    process = start(script(body), "--workers", "2", "--threads", "1", "--dashboard-address", ":0")
    # Two processes write to one pipe, each a line at once; `print` would write the end of the line separately.
    assert {process.stdout.readline(), process.stdout.readline()} == {"submitted\n", "changing\n"}
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 130, errors
    assert len(errors.splitlines()) == 3, errors
    dashboard, scheduler, message = errors.splitlines()
    assert dashboard.startswith("Dashboard: ")
    assert re.fullmatch(r"Scheduler: tcp://127\.0\.0\.1:\d+, for --scheduler of other commands", scheduler)
    assert message == "Job 'long' was stopped with the local cluster of this command."
    assert ends_soon(process.pid)


def test_ctrl_c_before_any_job_prints_one_line(script):
    path = script("import time\nprint('reading', flush=True)\ntime.sleep(60)")
    process = start(path, "--workers", "1", "--threads", "1", "--dashboard-address", ":0")
    assert process.stdout.readline() == "reading\n"
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=300)
    assert (process.returncode, errors.splitlines()[2:]) == (130, ["Interrupted."])
    assert ends_soon(process.pid)
