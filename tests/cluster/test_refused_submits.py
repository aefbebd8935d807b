"""An invalid submission is refused at once, and the error names the cause."""

from __future__ import annotations

import os
import sys
import threading

import pyarrow.compute as pc
import pytest
from counting_jobs import RUN, counting, counting_rows, mapped
from distributed import Client

import dask_elastic as de
from dask_elastic.runtime.client.submission import described_job
from dask_elastic.vocab import errors


def test_unpicklable_function_error_names_its_variable(client, numbers):
    guard = threading.Lock()

    def locked(batch):
        with guard:
            return batch

    with pytest.raises(errors.SubmitError, match=r"'tidy'.*'guard'.*lock"):
        de.submit(mapped(locked, numbers), client)
    assert de.jobs(client) == []


def test_unpicklable_aggregate_error_names_its_variable(client, numbers):
    guard = threading.Lock()

    def locked(batch):
        with guard:
            return batch["v"]

    topology = de.Topology("t")
    rows = topology.source("rows", de.sources.Arrow(numbers))
    rows.key_by("k").compute({"sum": de.aggregate.Sum(locked, columns=["v"])}, name="summed")
    with pytest.raises(errors.SubmitError, match=r"'summed'.*'guard'"):
        de.submit(topology, client)


def needs_module():
    """Return a function that cannot be loaded on workers."""

    class Foreign:
        def __reduce__(self):
            return __import__, ("a_module_that_is_only_on_the_client",)

    foreign = Foreign()
    return lambda batch: batch if foreign else None


def test_module_missing_on_workers_is_named(client, numbers):
    with pytest.raises(errors.SubmitError, match=r"worker tcp.*a_module_that_is_only_on_the_client.*PYTHONPATH"):
        de.submit(mapped(needs_module(), numbers), client)
    assert de.jobs(client) == []


class Leaves:
    """Ends the process in which it is loaded."""

    def __reduce__(self):
        return sys.exit, (3,)


def test_code_that_exits_when_it_is_loaded_leaves_workers_running(client, numbers):
    leaves = Leaves()
    pids = client.run(os.getpid)
    with pytest.raises(errors.SubmitError, match=r"cannot be loaded on worker .*SystemExit: 3"):
        de.submit(mapped(lambda batch: batch if leaves else None, numbers), client)
    assert client.run(os.getpid) == pids
    assert de.jobs(client) == []


def test_unknown_submit_option_error_names_nearest_option(client, numbers):
    with pytest.raises(errors.SubmitError, match="'inboxtime': did you mean 'inbox_time'"):
        de.submit(counting_rows(numbers), client, inboxtime="2ms")


def test_wrong_submit_option_is_refused(client, numbers):
    with pytest.raises(errors.SubmitError, match="on_error='perhaps': choose from 'fail', 'skip'"):
        de.submit(counting_rows(numbers), client, on_error="perhaps")
    with pytest.raises(errors.SubmitError, match="inbox_time='soon' is not a duration"):
        de.submit(counting_rows(numbers), client, inbox_time="soon")


@pytest.mark.parametrize("name", [3, "", "two\nlines"])
def test_wrong_job_name_is_refused(client, numbers, name):
    known = [job.name for job in de.jobs(client)]
    with pytest.raises(errors.SubmitError, match=r"job: the name "):
        de.submit(counting_rows(numbers), client, name=name)
    assert [job.name for job in de.jobs(client)] == known


def test_cores_for_unknown_operator_are_refused(client, numbers):
    with pytest.raises(errors.SubmitError, match=r"'conted'.*\['counted'\]"):
        de.submit(counting_rows(numbers), client, cores={"conted": 2})
    with pytest.raises(errors.SubmitError, match="at least one core"):
        de.submit(counting_rows(numbers), client, cores={"counted": 0})


def test_more_cores_than_slots_are_refused(client, numbers):
    with pytest.raises(errors.SubmitError, match=r"cores=\{'counted': 99\}: .* slots, which are 6\. Give at most 6"):
        de.submit(counting_rows(numbers), client, cores={"counted": 99})
    assert de.jobs(client) == []


def test_ended_job_keeps_state_and_rows_when_a_submit_of_its_name_is_refused(client, numbers, tmp_path):
    job = de.submit(counting(de.sources.Arrow(numbers)), client)
    job.wait(**RUN)
    rows = job.collect("out").num_rows
    (tmp_path / "file").write_text("no folder")
    refused = {
        "slots, which are 6": {"cores": {"counted": 99}},
        f"cannot write {tmp_path / 'file'}": {"checkpoint": tmp_path / "file"},
    }
    for match, options in refused.items():
        with pytest.raises(errors.ElasticError, match=match):
            de.submit(counting_rows(numbers), client, **options)
        assert job.collect("out").num_rows == rows > 0
    with pytest.raises(errors.SubmitError, match="a_module_that_is_only_on_the_client"):
        de.submit(mapped(needs_module(), numbers), client, name="count")
    assert job.collect("out").num_rows == rows > 0
    assert job.state("counted").to_pandas()["n"].sum() == 1_000
    again = de.submit(counting(de.sources.Arrow(numbers.slice(0, 10))), client)
    again.wait(**RUN)
    assert again.state("counted").to_pandas()["n"].sum() == 10


def test_address_or_cluster_in_place_of_client_is_refused_with_a_hint(cluster, numbers):
    address = cluster.scheduler_address
    with pytest.raises(TypeError, match=f"of type str: give a client .*, dask.distributed.Client\\('{address}'\\)"):
        de.submit(counting_rows(numbers), address)
    for call in (de.jobs, lambda given: de.job("job", given)):
        with pytest.raises(TypeError, match=r"of type LocalCluster: give a client .*Client\(cluster\)"):
            call(cluster)


def test_submit_of_non_topology_is_refused(client):
    with pytest.raises(TypeError, match="takes a Topology, not str"):
        de.submit("topology", client)


def test_version_mismatch_error_names_both_versions(client, numbers, monkeypatch):
    monkeypatch.setattr(described_job, "__version__", "0.0.1+other")
    with pytest.raises(errors.VersionMismatch, match=r"client: 0\.0\.1\+other, scheduler: .*Install one version"):
        de.submit(counting_rows(numbers), client)


def test_submit_without_workers_is_refused_at_once(small_cluster, numbers):
    with Client(small_cluster(n_workers=0)) as alone, pytest.raises(errors.NoWorkers, match="no workers"):
        de.submit(counting_rows(numbers), alone)


def test_missing_column_is_refused_at_submit(client, numbers):
    topology = de.Topology("t")
    rows = topology.source("rows", de.sources.Arrow(numbers))
    rows.key_by("kk").compute({"n": de.aggregate.Count()}, name="counted")
    with pytest.raises(errors.ElasticError, match=r"'kk'"):
        de.submit(topology, client)


def test_misspelt_column_of_an_expression_is_refused_at_submit(client, numbers):
    topology = de.Topology("t")
    rows = topology.source("rows", de.sources.Arrow(numbers))
    rows.filter(pc.field("w") > 15, name="large").sink(de.sinks.Collect(), name="out")
    with pytest.raises(errors.SchemaMismatch, match="filter 'large' reads column 'w', which its input lacks"):
        de.submit(topology, client)
    assert de.jobs(client) == []


def test_job_name_in_use_is_refused_and_another_accepted(client, held, numbers):
    with pytest.raises(errors.SubmitError, match="a job 'held' is running already"):
        de.submit(counting_rows(numbers), client, name="held")
    de.submit(counting_rows(numbers), client, name="other").wait(**RUN)
    assert held.status == "running"


def test_one_of_two_simultaneous_submits_of_a_name_is_refused(client, numbers):
    outcomes = []

    def submit():
        try:
            outcomes.append(de.submit(counting_rows(numbers), client, name="twin"))
        except errors.SubmitError as error:
            outcomes.append(error)

    threads = [threading.Thread(target=submit) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)
    won = [outcome for outcome in outcomes if isinstance(outcome, de.Job)]
    assert len(outcomes) == 2
    for job in won:
        job.wait(**RUN)
        assert job.state("counted").to_pandas()["n"].sum() == 1_000
    # Where the first had ended before the second came, both may win; what must not be is a job of both.
    assert won
    assert all("running already" in str(outcome) for outcome in outcomes if outcome not in won)


@pytest.mark.parametrize("option", [{"checkpoint_interval": "1s"}, {"checkpoint_keep": 3}, {"restart_attempts": 1}])
def test_options_of_checkpoints_without_a_folder_are_refused(numbers, option):
    [(name, value)] = option.items()
    with pytest.raises(errors.SubmitError, match=rf"{name}={value!r} has no effect.*checkpoint=\"/data/my-job\""):
        described_job.checked_job(counting_rows(numbers), None, None, False, option)
    assert described_job.checked_job(counting_rows(numbers), None, None, False, {**option, "checkpoint": None})


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (
            lambda rows: rows.key_by("kk").compute({"n": de.aggregate.Count()}, name="counted"),
            "operator 'counted' reads source 'rows': Arrow.* has no column 'kk'; it has 'k', 'v': did you mean 'k'",
        ),
        (
            lambda rows: rows.key_by("k").compute({"n": de.aggregate.Sum("w")}, name="summed"),
            "operator 'summed' reads source 'rows': Arrow.* has no column 'w'; it has 'k', 'v'",
        ),
    ],
)
def test_column_that_the_source_lacks_is_refused_with_operator_and_source(numbers, build, message):
    topology = de.Topology("t")
    build(topology.source("rows", de.sources.Arrow(numbers)))
    with pytest.raises(errors.SourceError, match=message):
        described_job.checked_job(topology, None, None, False, {})


def test_event_time_that_the_source_lacks_is_refused_with_the_source(numbers):
    topology = de.Topology("t")
    topology.source("rows", de.sources.Arrow(numbers, event_time="at")).sink(de.sinks.Collect(), name="out")
    message = "source 'rows': Arrow.*: no column 'at' for event_time; choose one of 'k', 'v'"
    with pytest.raises(errors.SourceError, match=message):
        described_job.checked_job(topology, None, None, False, {})


def chain(numbers, length):
    """A topology with functions one behind the other."""
    topology = de.Topology("chain")
    stream = topology.source("rows", de.sources.Arrow(numbers))
    for number in range(length):
        stream = stream.map(lambda batch: batch, name=f"step{number}")
    stream.sink(de.sinks.Collect(), name="out")
    return topology


def test_longest_chain_that_is_accepted_runs(client, numbers):
    job = de.submit(chain(numbers, 100), client)
    job.wait(**RUN)
    assert job.collect("out").num_rows == numbers.num_rows


@pytest.mark.parametrize("length", [101, 300, 3_000])
def test_chain_that_is_too_long_is_refused_with_the_length_that_works(client, numbers, length):
    with pytest.raises(errors.TopologyError, match=rf"{length} operators follow .* behind 'rows'.*at most 100 follow"):
        de.submit(chain(numbers, length), client)
