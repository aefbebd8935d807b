"""Spark executors are killed in the middle of a batch: each row is in the state once, with and without checkpoints."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("lost_executor.py")
SECONDS = 580
EVERY = bool(os.environ.get("DASK_ELASTIC_EVERY_CRASH"))


@pytest.mark.timeout(SECONDS + 20)
def test_killed_spark_executors_lose_and_repeat_no_row(tmp_path, spark_home):
    # In a separate process: a process can have only one Spark session, which the other tests use.
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, [os.environ["PYTHONPATH"], *sys.path])),
        "SPARK_HOME": str(spark_home),
    }
    running = subprocess.Popen(
        [sys.executable, str(SCRIPT), str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
    )
    try:
        output, errors = running.communicate(timeout=SECONDS)
    finally:
        if running.poll() is None:
            os.killpg(running.pid, signal.SIGKILL)
    assert running.returncode == 0, errors[-3000:]
    durable = "180000 rows, 180000 different, 3" if EVERY else "90000 rows, 90000 different, 2"
    assert output.splitlines() == [
        "plain: 90000 rows, 90000 different, 1 executors lost",
        f"durable: {durable} executors lost",
    ]
