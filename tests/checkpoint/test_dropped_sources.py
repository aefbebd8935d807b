"""What sources that were dropped leave in the folder: later sources of their names do not read it."""

from __future__ import annotations

import pyarrow as pa
import pytest

from dask_elastic.checkpoint.catalog import Catalog
from dask_elastic.checkpoint.dropped_sources import forget_namesakes
from dask_elastic.checkpoint.epoch_spool import EpochSpool
from dask_elastic.checkpoint.folder import CheckpointFolder
from dask_elastic.checkpoint.generations import next_generation
from dask_elastic.checkpoint.manifest import Manifest
from dask_elastic.checkpoint.spool.entry import Entry
from dask_elastic.checkpoint.spool.log import SpoolLog, path_of
from dask_elastic.checkpoint.sweep import sweep
from dask_elastic.vocab.epoch import EpochRecord
from dask_elastic.vocab.errors import SubmitError

PATH = path_of("run", "sent/eu", 0)
WITH, WITHOUT = {"sent/eu": "source", "spark": "source"}, {"other": "source"}


@pytest.fixture
def catalog(tmp_path):
    return Catalog(CheckpointFolder(tmp_path))


def accepted(catalog, generation, *numbers):
    """Append entries to the log of the source, and return it."""
    log = SpoolLog(catalog.folder, PATH, generation)
    rows = pa.record_batch({"n": [generation]})
    for number in numbers:
        log.append([Entry(number, "sender", number, rows, None, 0.0)])
    log.close()
    return log


def checkpoint(catalog, number, generation, kinds):
    """Publish a checkpoint of a job with some components."""
    topology = catalog.folder.write(f"topology/{number}.pickle", [b"pickled"])
    catalog.publish(Manifest("job", number, generation, 0.0, 0.5, topology, kinds))


def files(catalog):
    return sorted(catalog.folder.sizes(PATH))


def test_later_source_of_the_name_reads_nothing_of_the_dropped_one(catalog):
    accepted(catalog, 1, 1, 2)
    checkpoint(catalog, 1, 1, WITH)
    checkpoint(catalog, 2, 2, WITHOUT)
    forget_namesakes(catalog, catalog.load(2), "run", ["sent/eu"])
    assert SpoolLog(catalog.folder, PATH, 3).last == 0


def test_rows_that_the_new_source_has_accepted_since_the_checkpoint_stay(catalog):
    checkpoint(catalog, 2, 2, WITHOUT)
    forget_namesakes(catalog, catalog.load(2), "run", ["sent/eu"])
    accepted(catalog, 3, 1)
    forget_namesakes(catalog, catalog.load(2), "run", ["sent/eu"])
    log = SpoolLog(catalog.folder, PATH, 4)
    assert [entry.rows["n"].to_pylist() for entry in log.entries(0)] == [[3]]


def test_source_that_the_checkpoint_has_keeps_its_rows(catalog):
    accepted(catalog, 1, 1, 2)
    checkpoint(catalog, 1, 1, WITH)
    forget_namesakes(catalog, catalog.load(1), "run", ["sent/eu"])
    assert SpoolLog(catalog.folder, PATH, 2).last == 2


def test_epochs_of_a_dropped_source_are_refused_until_no_checkpoint_has_it(catalog):
    spool = EpochSpool(catalog.folder, "spark")
    spool.append(EpochRecord(1, "q", 0, 0, 0, ()))
    checkpoint(catalog, 1, 1, WITH)
    checkpoint(catalog, 2, 2, WITHOUT)
    with pytest.raises(SubmitError, match=r"'spark' that was dropped.*another name"):
        forget_namesakes(catalog, catalog.load(2), "run", ["spark"])
    checkpoint(catalog, 3, 2, WITHOUT)
    sweep(catalog, running={"other"})
    forget_namesakes(catalog, catalog.load(3), "run", ["spark"])
    assert spool.records() == []


def test_sweep_deletes_what_dropped_sources_have_accepted_once_no_checkpoint_needs_it(catalog):
    accepted(catalog, 1, 1, 2)
    checkpoint(catalog, 1, 1, WITH)
    checkpoint(catalog, 2, 2, WITHOUT)
    sweep(catalog, running={"other"})
    assert len(files(catalog)) == 1
    checkpoint(catalog, 3, 2, WITHOUT)
    sweep(catalog, running={"other", "sent/eu"})
    assert len(files(catalog)) == 1
    sweep(catalog, running={"other"})
    assert files(catalog) == []


def test_sweep_of_an_earlier_generation_keeps_what_sources_of_a_later_one_have_accepted(catalog):
    checkpoint(catalog, 1, next_generation(catalog.folder), WITHOUT)
    accepted(catalog, next_generation(catalog.folder), 1)
    EpochSpool(catalog.folder, "spark").append(EpochRecord(1, "q", 0, 0, 0, ()))
    sweep(catalog, running={"other"})
    assert len(files(catalog)) == 1
    assert len(EpochSpool(catalog.folder, "spark").records()) == 1
