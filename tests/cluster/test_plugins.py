"""Plugins are installed (also by preload) and removed without a trace; one that fails at setup affects no process."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from distributed import Client
from distributed.dashboard.scheduler import template_variables

import dask_elastic as de
from dask_elastic.runtime.scheduler import coordinator
from dask_elastic.runtime.worker import node
from dask_elastic.vocab import errors
from dask_elastic_plugins import install as installing
from dask_elastic_plugins.scheduler import ElasticSchedulerPlugin

# Workers import this file too, for what they are asked to run.
sys.path.insert(0, str(Path(__file__).parent))
from counting_jobs import NUMBERS, RUN, assert_runs, held


def elastic_handlers(dask_worker):
    """What of dask_elastic is left on a worker."""
    named = [name for name in (*dask_worker.handlers, *dask_worker.plugins) if "elastic" in name]
    return named + [thread.name for thread in threading.enumerate() if thread.name.startswith("elastic")]


def scheduler_handlers(dask_scheduler):
    """What of dask_elastic is left on a scheduler."""
    places = (dask_scheduler.handlers, dask_scheduler.plugins, dask_scheduler.worker_plugins)
    return [name for place in places for name in place if "elastic" in name]


@pytest.mark.parametrize("executed", [False, True])
def test_garbage_collection_leaves_out_modules_of_workers_that_have_executed_no_task(executed, small_cluster):
    """What users' tasks have left may refer to itself, and would stay for ever."""
    with Client(small_cluster(), set_as_default=False) as client:
        if executed:
            assert client.submit(sum, [1, 2]).result() == 3
        [before] = client.run(gc.get_freeze_count).values()
        installing.install(client)
        [after] = client.run(gc.get_freeze_count).values()
        assert (after > before + 1_000) is not executed


def assert_clean(client, wait_until):
    """Nothing of dask_elastic is left on the cluster."""
    wait_until(lambda: not any(client.run(elastic_handlers).values()), "no plugin is left on the workers")
    assert client.run_on_scheduler(scheduler_handlers) == []
    wait_until(lambda: set(client.run(sys.getswitchinterval).values()) == {0.005}, "threads take turns as usual")


def test_uninstall_removes_all_plugins_and_submit_reinstalls_them(small_cluster, wait_until):
    cluster = small_cluster(n_workers=2)
    with Client(cluster, set_as_default=False) as client, Client(cluster, set_as_default=False) as other:
        assert_clean(client, wait_until)
        installing.install(client)
        assert_runs(other, name="of-the-other")
        job = held(client)
        assert any(client.run(elastic_handlers).values())
        installing.uninstall(client)
        assert_clean(client, wait_until)
        with pytest.raises(errors.UnknownJob):
            job.status  # noqa: B018
        assert de.jobs(client) == []
        installing.uninstall(client)
        assert_runs(client)
        installing.uninstall(client)
        assert_runs(other)
        assert de.job("next", client).status == "finished"


def test_second_uninstall_waits_for_the_first_one(small_cluster, monkeypatch, wait_until):
    cluster = small_cluster(processes=False)
    with Client(cluster, set_as_default=False) as client, Client(cluster, set_as_default=False) as other:
        held(client)
        closing, go_on = asyncio.Event(), asyncio.Event()
        close = coordinator.Coordinator.close

        async def slow_close(self):
            closing.set()
            await go_on.wait()
            await close(self)

        monkeypatch.setattr(coordinator.Coordinator, "close", slow_close)
        threads = [threading.Thread(target=installing.uninstall, args=(each,)) for each in (client, other)]
        threads[0].start()
        wait_until(closing.is_set, "the first call has begun")
        threads[1].start()
        threads[1].join(0.2)
        assert threads[1].is_alive()
        client.loop.add_callback(go_on.set)
        for each in threads:
            each.join(100)
        assert_runs(client)


def test_workers_import_before_the_scheduler_where_they_are_other_processes(small_cluster, wait_until, monkeypatch):
    monkeypatch.setattr(installing, "_has_workers", lambda: False)
    cluster = small_cluster(n_workers=2)
    with Client(cluster, set_as_default=False) as client:
        with pytest.raises(errors.TopologyError):
            de.submit(de.Topology("without-sources"), client)
        finish = installing.begin_install(client)
        wait_until(lambda: all(client.run(elastic_handlers).values()), "the workers host dask_elastic")
        assert client.run_on_scheduler(scheduler_handlers) == ["dask-elastic-worker"]
        finish()
        assert_runs(client)
        installing.uninstall(client)
        assert_clean(client, wait_until)


def test_workers_in_the_process_of_the_client_import_when_it_waits(small_cluster):
    cluster = small_cluster(processes=False)
    with Client(cluster, set_as_default=False) as client:
        finish = installing.begin_install(client)
        assert client.run_on_scheduler(scheduler_handlers) == []
        finish()
        assert_runs(client)


def tracebacks(text):
    """The tracebacks in a log that have to do with dask_elastic; Dask logs others, as when a client leaves."""
    found = re.findall(r"Traceback \(most recent call last\):\n(?:[ \t].*\n)*.*", text)
    return [one for one in found if "elastic" in re.sub(r'File ".*/(?:site-packages|python3\.\d+)/', 'File "', one)]


@pytest.fixture
def command_line(tmp_path):
    """Start a Dask scheduler and a worker from the command line, both with the preload; gives the address."""
    file = tmp_path / "scheduler.json"
    dask = [sys.executable, "-m", "dask"]
    preload = ["--preload", "dask_elastic_plugins.install", "--scheduler-file", str(file), "--no-dashboard"]
    commands = [
        [*dask, "scheduler", "--host", "127.0.0.1", "--port", "0", *preload],
        [*dask, "worker", "--nthreads", "2", "--no-nanny", "--local-directory", str(tmp_path), *preload],
    ]
    log = (tmp_path / "log").open("w")
    started = [subprocess.Popen(command, stdout=log, stderr=log, env=os.environ) for command in commands]
    yield file, tmp_path / "log"
    for process in reversed(started):
        process.send_signal(signal.SIGINT)
    for process in started:
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)
    log.close()


def test_preloaded_plugins_serve_several_clients_and_are_removed(command_line, wait_until):
    file, log = command_line
    wait_until(lambda: file.exists() and file.stat().st_size, "the scheduler has started")
    address = json.loads(file.read_text())["address"]
    with Client(address, set_as_default=False) as client, Client(address, set_as_default=False) as other:
        client.wait_for_workers(1, timeout=100)
        assert de.jobs(client) == []
        assert any(client.run(elastic_handlers).values())
        assert all(client.run(lambda: "pandas" in sys.modules).values()), "the first job waits for no import"
        job = held(client)
        job.send(NUMBERS)
        assert_runs(other)
        job.send(NUMBERS)
        job.end_of_input()
        job.wait(**RUN)
        assert job.state("counted").get(1)["n"] == 400
        installing.uninstall(other)
        assert_clean(client, wait_until)
        assert_runs(client)
    assert not tracebacks(log.read_text())


def test_preloaded_scheduler_starts_its_plugin_once(small_cluster):
    preload = {"preload": "dask_elastic_plugins.install"}
    cluster = small_cluster(processes=False, scheduler_kwargs=preload, dashboard_address="127.0.0.1:0")
    assert template_variables(cluster.scheduler)["pages"].count("elastic") == 1
    with Client(cluster, set_as_default=False) as client:
        assert_runs(client)
        installing.uninstall(client)
    assert "elastic" not in template_variables(cluster.scheduler)["pages"]
    assert "retire_workers" not in vars(cluster.scheduler)


def test_restarted_scheduler_still_hosts_jobs(small_cluster):
    def restart(dask_scheduler):
        # As `Scheduler.restart` does, without new workers, which are processes.
        dask_scheduler._clear_task_state()
        for plugin in dask_scheduler.plugins.values():
            plugin.restart(dask_scheduler)

    made = small_cluster(processes=False)
    with Client(made, set_as_default=False) as client, Client(made, set_as_default=False) as other:
        installing.install(client)
        client.run_on_scheduler(restart)
        with pytest.raises(errors.UnknownJob, match="the cluster knows none"):
            de.job("any", other)


def test_clients_that_install_at_once_start_one_coordinator(small_cluster, monkeypatch):
    made = []

    class Counted(coordinator.Coordinator):
        def __init__(self, scheduler):
            made.append(scheduler)
            super().__init__(scheduler)

    async def both(scheduler):
        plugins = [ElasticSchedulerPlugin() for _ in range(2)]
        await asyncio.gather(*(scheduler.register_scheduler_plugin(plugin, idempotent=True) for plugin in plugins))
        return [plugin.coordinator is not None for plugin in plugins]

    monkeypatch.setattr(coordinator, "Coordinator", Counted)
    cluster = small_cluster(processes=False)
    with Client(cluster, set_as_default=False) as client:
        assert sorted(client.sync(both, cluster.scheduler)) == [False, True]
        assert len(made) == 1
        assert_runs(client)


def test_failed_plugin_setup_leaves_worker_usable(small_cluster, monkeypatch, caplog):
    def broken(worker):
        raise OSError("no threads left")

    monkeypatch.setattr(node, "NodeRuntime", broken)
    with Client(small_cluster(processes=False), set_as_default=False) as client:
        with pytest.raises(errors.SubmitError, match="no dask_elastic"):
            held(client)
        assert client.submit(sum, [1, 2]).result(timeout=100) == 3
    assert "could not be set up on worker" in caplog.text


def test_upkeep_of_a_worker_goes_on_after_an_error(small_cluster, wait_until, caplog):
    cluster = small_cluster(n_workers=1, processes=False)
    with Client(cluster, set_as_default=False) as client:
        held(client)
        node = cluster.workers[0].plugins["dask-elastic-worker"].runtime
        looks, look = [], node._watch_memory

        def watch_memory():
            looks.append(len(looks))
            if len(looks) == 1:
                raise RuntimeError("can't start new thread")
            look()

        node._watch_memory = watch_memory
        wait_until(lambda: len(looks) > 1, "the worker looks at its memory again")
    assert "upkeep on worker" in caplog.text
    assert "can't start new thread" in caplog.text


def test_error_in_every_upkeep_of_a_worker_is_logged_once_and_counted(small_cluster, wait_until, caplog):
    cluster = small_cluster(n_workers=1, processes=False)
    with Client(cluster, set_as_default=False) as client:
        held(client)
        node = cluster.workers[0].plugins["dask-elastic-worker"].runtime
        looks = []

        def watch_memory():
            looks.append(len(looks))
            raise RuntimeError("can't start new thread")

        node._watch_memory = watch_memory
        wait_until(lambda: len(looks) > 3, "the worker looks at its memory again and again")
    cluster.close()
    wait_until(lambda: "times more" in caplog.text, "the worker's last upkeep is logged")
    upkeep = [record for record in caplog.records if record.getMessage().startswith("upkeep on worker")]
    assert [record.exc_info is not None for record in upkeep] == [True, False]
    assert f"the same error {len(looks) - 1} times more" in upkeep[-1].getMessage()


def test_upkeep_of_a_worker_does_not_wait_for_code_that_was_left_to_it(small_cluster, wait_until):
    cluster = small_cluster(n_workers=1, processes=False)
    with Client(cluster, set_as_default=False) as client:
        job = held(client)
        node = cluster.workers[0].plugins["dask-elastic-worker"].runtime
        begun, go_on, looks = threading.Event(), threading.Event(), []

        def blocks():
            begun.set()
            assert go_on.wait(100)

        left, look = [blocks], node._watch_memory
        threads = node.job_parts[job.name].threads
        threads.overdue = lambda: [left.pop()] if left else []
        node._watch_memory = lambda: (looks.append(begun.is_set()), look())
        wait_until(lambda: looks.count(True) > 1, "the worker looks at its memory while the code is blocked")
        go_on.set()


def test_failed_plugin_setup_leaves_scheduler_usable(small_cluster, monkeypatch, caplog):
    def broken(scheduler):
        raise OSError("no threads left")

    monkeypatch.setattr(coordinator, "Coordinator", broken)
    with Client(small_cluster(processes=False), set_as_default=False) as client:
        with pytest.raises(errors.ElasticError, match="does not host dask_elastic"):
            held(client)
        assert client.submit(sum, [1, 2]).result(timeout=100) == 3
    assert "could not be set up on the scheduler" in caplog.text
