"""Short texts with times: a generated recording, and the loads and states of two applications on it.

Notes
-----
State migration (Ding et al.), section 6: word count, and frequent patterns, which are combinations of words. The paper
uses tweets of two months; the generated texts have the schema of a recording of commit messages, and the skew of its
words: the five most frequent are a sixth of all. ERRATA has no entry for the applications.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from dask_elastic.routing.hashing import hash_columns
from dask_elastic.routing.keyspace import KeySpace

Floats = NDArray[np.float64]

SCHEMA = pa.schema(
    {
        "arrival_ts": pa.timestamp("ms"),
        "event_ts": pa.timestamp("ms"),
        "author_id": pa.int64(),
        "is_merge": pa.bool_(),
        "text": pa.string(),
    }
)
"""The columns of a recording."""

START = np.datetime64("2011-10-01T00:00:00", "ms")
WORDS = 20_000
AUTHORS = 5_000
SPAN = 4
"""The greatest distance of two words of a text that form a pattern."""

_COUNTER_BYTES = 16


@cache
def short_texts(seed: int, rows: int, days: int = 60) -> pa.Table:
    """Make texts in order of arrival, with more by day than by night, and with bursts.

    Parameters
    ----------
    seed : int
        Seeds the texts.
    rows : int
        The number of texts.
    days : int
        The length of the recording in days.

    Returns
    -------
    pyarrow.Table
        With the columns of `SCHEMA`.

    Examples
    --------
    >>> short_texts(0, 1000).schema.equals(SCHEMA)
    True
    """
    random = np.random.default_rng(seed)
    hours = np.sort(random.choice(24 * days, rows, p=_shares_of_hours(random, 24 * days)))
    within = np.sort(hours * 3_600_000 + random.integers(0, 3_600_000, rows))
    arrival = START + within.astype("timedelta64[ms]")
    lengths = 1 + random.poisson(7, rows)
    words = random.choice(WORDS, int(lengths.sum()), p=_shares_of_words())
    names = pa.array([f"w{rank}" for rank in range(WORDS)])
    lists = pa.ListArray.from_arrays(np.append(0, np.cumsum(lengths)).astype(np.int32), names.take(pa.array(words)))
    columns = [
        arrival,
        arrival - random.gamma(0.5, 60_000, rows).astype("timedelta64[ms]"),
        random.integers(1, AUTHORS, rows),
        random.random(rows) < 0.2,
        pc.binary_join(lists, " "),
    ]
    return pa.table([pa.array(column).cast(field.type) for column, field in zip(columns, SCHEMA, strict=True)], SCHEMA)


def word_count(texts: pa.Table, tasks: int) -> tuple[Floats, Floats]:
    """Return load and state of a word count: words, and bytes of its counters, of each task.

    Parameters
    ----------
    texts : pyarrow.Table
        With a column ``text``.
    tasks : int
        The number of tasks; words are assigned by hash.

    Returns
    -------
    tuple of two arrays of float
        Words and bytes for each task.
    """
    words, codes, _ = _words(texts)
    task = _task_of(_hashes(words), tasks)
    size = pc.binary_length(words).to_numpy(zero_copy_only=False) + _COUNTER_BYTES
    load = np.bincount(task[codes], minlength=tasks).astype(np.float64)
    return load, np.bincount(task, size, minlength=tasks).astype(np.float64)


def frequent_patterns(texts: pa.Table, tasks: int) -> tuple[Floats, Floats]:
    """Return load and state of counting pairs of words that are near each other in a text.

    Parameters
    ----------
    texts : pyarrow.Table
        With a column ``text``.
    tasks : int
        The number of tasks; pairs are assigned by hash.

    Returns
    -------
    tuple of two arrays of float
        Pairs and bytes for each task.

    Notes
    -----
    State migration, figure 10: the detector's counters. A text counts twice, when it enters and when it leaves the
    window: the same factor for all tasks.
    """
    words, codes, row = _words(texts)
    hashes = _hashes(words)[codes]
    pairs = []
    for apart in range(1, SPAN):
        near = np.flatnonzero((row[apart:] == row[:-apart]) & (codes[apart:] != codes[:-apart]))
        pairs.append(hashes[near] + hashes[near + apart])
    every = _mixed(np.concatenate(pairs))
    load = np.bincount(_task_of(every, tasks), minlength=tasks).astype(np.float64)
    counters = np.bincount(_task_of(np.unique(every), tasks), minlength=tasks).astype(np.float64)
    return load, counters * _COUNTER_BYTES


APPLICATIONS = {"word count": word_count, "frequent patterns": frequent_patterns}
"""The applications of the paper's section 6."""


def _words(texts: pa.Table) -> tuple[pa.Array, NDArray[np.int64], NDArray[np.int64]]:
    """Return distinct words, the number of each word that occurs, and its row."""
    lists = pc.utf8_split_whitespace(pc.utf8_lower(texts["text"].combine_chunks()))
    encoded = lists.flatten().dictionary_encode()
    row = np.repeat(np.arange(len(lists)), lists.value_lengths().fill_null(0).to_numpy(zero_copy_only=False))
    return encoded.dictionary, encoded.indices.to_numpy().astype(np.int64), row


def _hashes(words: pa.Array) -> NDArray[np.uint64]:
    return hash_columns(pa.record_batch({"word": words}), ("word",))


def _task_of(hashes: NDArray[np.uint64], tasks: int) -> NDArray[np.int64]:
    return KeySpace(1, tasks).shard_of(hashes).astype(np.int64)


def _mixed(sums: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return sums of hashes, which do not depend on the order of a pair, as hashes again."""
    return hash_columns(pa.record_batch({"pair": sums}), ("pair",))


def _shares_of_hours(random: np.random.Generator, hours: int) -> Floats:
    """Return the share of texts in each hour, by time of day, day of the week, slow drift and bursts."""
    hour = np.arange(hours)
    day = 1 + 0.6 * np.sin(2 * np.pi * (hour % 24 - 9) / 24)
    week = np.where(hour // 24 % 7 < 5, 1.0, 0.7)
    drift = np.exp(0.05 * np.cumsum(random.normal(0, 1, hours)) / np.sqrt(np.arange(1, hours + 1) ** 0.5))
    burst = np.where(random.random(hours) < 0.02, random.uniform(1.3, 2.0, hours), 1.0)
    shares = day * week * drift * burst * random.lognormal(0, 0.1, hours)
    return np.asarray(shares / shares.sum())


def _shares_of_words() -> Floats:
    heights = 1.0 / (np.arange(WORDS) + 1.8)
    return np.asarray(heights / heights.sum())
