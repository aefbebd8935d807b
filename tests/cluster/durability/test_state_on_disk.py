"""State that is larger than the memory of its worker."""

from __future__ import annotations

import os

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from distributed import Client

import dask_elastic as de
from dask_elastic.vocab import errors

RUN = {"timeout": 240, "progress": False}
KEYS, BATCH = 200_000, 2_000
TEXT = "x" * 1_500


def test_state_larger_than_memory_is_kept_checkpointed_and_exact(small_cluster, tmp_path):
    def rows():
        for first in (*range(0, KEYS, BATCH), *range(0, KEYS, 5 * BATCH)):
            # The rows are as large as the state that they become, so that credit bounds the size of joined batches.
            keys = range(first, first + BATCH)
            yield pa.table({"k": np.array(keys), "text": [f"{key}{TEXT}" for key in keys]})

    def keep(batch, state):
        state.set("rows", state.get("rows") + state.grouping.sizes)
        state.set("text", batch["text"].take(pa.array(state.first)))
        return state.keys.slice(0, 1)

    topology = de.Topology("beyond-memory")
    read = topology.source("rows", de.sources.Iterable(rows)).key_by("k")
    state = {"rows": pa.int64(), "text": pa.string()}
    kept = read.compute(keep, name="kept", state=state, executors=1, store="disk")
    # Its last checkpoint covers all rows, because this sink waits for it.
    kept.sink(de.sinks.Parquet(str(tmp_path / "out")))
    folder = str(tmp_path / "checkpoints")
    options = {"n_workers": 1, "threads_per_worker": 2, "memory_limit": "480MB"}
    with Client(small_cluster(**options), set_as_default=False) as client:
        pids = client.run(os.getpid)
        job = de.submit(
            topology, client, latency_target=None, channel_window="8MiB", checkpoint=folder, checkpoint_interval="100s"
        )
        job.wait(**RUN)
        assert client.run(os.getpid) == pids
        [measured] = job.metrics().to_dict("records")
        assert measured["state_on_disk"] == measured["state_bytes"] > 250e6
        assert f"{KEYS:,} keys, the first" in repr(job.state("kept"))
        assert job.state("kept").get(5 * BATCH)["rows"] == 2
        with pytest.raises(errors.StateMemoryExceeded, match="read_state"):
            job.state("kept").to_arrow()
        assert client.run(os.getpid) == pids
    table = de.read_state(folder, "kept").sort_by("k")
    keys = np.arange(KEYS)
    assert (table["k"].to_numpy() == keys).all()
    assert (table["rows"].to_numpy() == 1 + (keys // BATCH % 5 == 0)).all()
    assert pc.all(pc.equal(table["text"], pa.array([f"{key}{TEXT}" for key in range(KEYS)]))).as_py()
