"""Counts the words of generated lines, and compares the result with a `Counter`."""

from __future__ import annotations

import sys
from collections import Counter

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from dask.distributed import Client

import dask_elastic as de
from dask_elastic import aggregate as agg

WORDS = ["stream", "batch", "shard", "core", "worker", "key", "state", "move", "label", "task"]


def make_lines(count: int) -> list[str]:
    random = np.random.default_rng(7)
    return [" ".join(random.choice(WORDS, size=random.integers(1, 12))) for _ in range(count)]


def split_words(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pc.list_flatten(pc.utf8_split_whitespace(batch["line"]))], names=["word"])


def build(lines: list[str]) -> de.Topology:
    topology = de.Topology("word-count")
    source = topology.source("lines", de.sources.Arrow(pa.table({"line": lines}), batch_rows=500))
    source.map(split_words).key_by("word").compute({"seen": agg.Count()}, name="per_word")
    return topology


def main() -> int:
    lines = make_lines(20_000)
    with Client(n_workers=2, threads_per_worker=2, dashboard_address=":0") as client:
        job = de.submit(build(lines), client)
        job.wait(timeout=60)
        seen = {row["word"]: row["seen"] for row in job.state("per_word").to_arrow().to_pylist()}
    expected = Counter(word for line in lines for word in line.split())
    for word, count in expected.most_common():
        print(f"{word:8}{count:8,}{'' if seen.get(word) == count else f'  but the job has {seen.get(word)}'}")
    return 0 if seen == expected else 1


if __name__ == "__main__":
    sys.exit(main())
