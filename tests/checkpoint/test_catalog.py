from __future__ import annotations

import logging
from dataclasses import replace

import pytest
from checkpointed import Job

from dask_elastic.checkpoint import manifest_file
from dask_elastic.checkpoint.catalog import Catalog
from dask_elastic.checkpoint.folder import CheckpointFolder
from dask_elastic.checkpoint.generations import may_run, next_generation, note_ended, record_base, recorded_bases
from dask_elastic.checkpoint.manifest import Manifest
from dask_elastic.checkpoint.pickled import Pickled
from dask_elastic.checkpoint.sweep import Swept, sweep
from dask_elastic.vocab.errors import CheckpointCorrupt, CheckpointError, NoCheckpoint


@pytest.fixture
def folder():
    return CheckpointFolder("memory://catalog")


def job_with(folder, checkpoints, **options):
    """Return a job with checkpoints of which each after the first adds a file of changes."""
    job = Job(folder, **options)
    job.put({f"N{number}": number for number in range(100)})
    for number in range(checkpoints):
        job.put({"N1": number})
        job.checkpoint()
    return job


def files(folder):
    names = [f"{parent}/{name}" for parent in ("manifests", "topology") for name in folder.sizes(parent)]
    parents = [f"state/{name}" for name in folder.folders("state")]
    return {*names, *(f"{parent}/{name}" for parent in parents for name in folder.sizes(parent))}


def test_manifest_is_read_as_written(folder):
    job = job_with(folder, 2)
    manifest = job.checkpoint(savepoint=True)
    read = job.catalog.manifest(3)
    assert read == manifest
    assert read.positions["flights"][0].load("the offset") == 3
    assert read.new_bytes == 0
    assert job.catalog.manifest(2).new_bytes > 0
    assert read.nbytes == sum(file.nbytes for file in read.files)


def test_all_parts_of_a_manifest_are_read_as_written(folder):
    manifest = Manifest(
        "Verspätungen",
        3,
        2,
        1.5,
        2.25,
        folder.write("topology/1.pickle", [b"pickled"]),
        {"in": "source"},
        (),
        {"in": (Pickled.of({"file": 3}), None)},
        frozenset({"in"}),
        {"out": (None, Pickled.of(b"handle"))},
        {"in": Pickled.of([1, 2])},
        True,
    )
    assert manifest_file.from_bytes(manifest_file.to_bytes(manifest), "3.json", 3) == manifest


def test_chain_with_an_unwritten_file_makes_no_manifest(folder):
    job = job_with(folder, 1)
    manifest = job.catalog.load()
    state = manifest.states[0]
    chain = state.chains[0].cut(9, [1] * 4, [1] * 4)
    broken = type(state)("planes", ("plane",), 2, 4, (chain, state.chains[1]))
    with pytest.raises(ValueError, match=r"the file of cut 9 is not written; take Chain.at for a manifest"):
        manifest_file.to_bytes(Manifest("delays", 9, 1, 0.0, 0.0, manifest.topology, states=(broken,)))


def test_newest_checkpoint_is_loaded(folder):
    catalog = job_with(folder, 3).catalog
    assert catalog.load().number == 3
    assert catalog.load(2).number == 2
    assert catalog.load(below=3).number == 2
    assert [manifest.number for manifest in catalog.complete()] == [3, 2, 1]
    assert catalog.next_number() == 4


def test_absent_checkpoint_is_named(folder):
    with pytest.raises(NoCheckpoint, match=r"memory://catalog has no complete checkpoint. Check the URL"):
        Catalog(folder).load()
    catalog = job_with(folder, 2).catalog
    with pytest.raises(NoCheckpoint, match=r"has no checkpoint 7; it has 2, 1. Use one of these"):
        catalog.load(7)
    with pytest.raises(NoCheckpoint, match="has no checkpoint below 1"):
        catalog.load(below=1)


def test_damaged_checkpoint_is_skipped_with_a_warning(folder, caplog):
    job = job_with(folder, 2)
    newest = {file.path for file in job.catalog.manifest(2).files} - {
        file.path for file in job.catalog.manifest(1).files
    }
    (path,) = newest
    folder.delete(path)
    with caplog.at_level(logging.WARNING, "dask_elastic.checkpoint"):
        assert job.catalog.load().number == 1
    assert f"checkpoint 2 of memory://catalog is skipped: checkpoint file memory://catalog/{path} is" in caplog.text
    assert [manifest.number for manifest in job.catalog.complete()] == [1]
    with pytest.raises(CheckpointCorrupt, match="no such file"):
        job.catalog.load(2)
    assert job.catalog.next_number() == 3


def test_newer_format_is_refused_instead_of_an_older_checkpoint(folder, monkeypatch):
    job = job_with(folder, 1)
    monkeypatch.setattr(manifest_file, "FORMAT", 9)
    job.checkpoint()
    monkeypatch.setattr(manifest_file, "FORMAT", 1)
    with pytest.raises(CheckpointError, match=r"0000000002.json has format 9, .* reads formats up to 1. Upgrade"):
        job.catalog.load()


def test_manifest_of_another_number_is_damaged(folder):
    job = job_with(folder, 1)
    contents = folder.read_unchecked(manifest_file.path_of(1))
    folder.write(manifest_file.path_of(2), [contents])
    with pytest.raises(CheckpointCorrupt, match="wanted the manifest of checkpoint 2, got that of checkpoint 1"):
        job.catalog.manifest(2)


def test_number_of_a_given_up_checkpoint_is_not_used_again(folder):
    job = job_with(folder, 1)
    job.put({"N1": 5})
    job.write(*next((executor, cut) for executor in (0, 1) if (cut := job.cut(executor, 2)) is not None))
    assert job.catalog.next_number() == 3
    with pytest.raises(CheckpointError, match="exists already"):
        job.catalog.publish(replace(job.catalog.manifest(1), ended=9.0))


def test_sweep_keeps_what_the_newest_checkpoints_need(folder):
    job = job_with(folder, 12, most=4)
    kept = [job.catalog.manifest(number) for number in (12, 11)]
    swept = sweep(job.catalog)
    assert swept.finished
    assert swept.deleted > 10
    needed = {file.path for manifest in kept for file in manifest.files}
    assert files(folder) == {*needed, *(manifest_file.path_of(number) for number in (12, 11))}
    assert {f"state/{name}" for name in folder.folders("state")} == {
        path.rpartition("/")[0] for path in needed if path.startswith("state/")
    }
    assert Job.restored(folder, kept[1]).contents() == job.contents() | {"N1": 10}
    assert sweep(job.catalog) == Swept(0, True)


def test_sweep_keeps_savepoints(folder):
    job = job_with(folder, 1)
    job.put({"N2": 1000})
    job.checkpoint(savepoint=True)
    saved = job.contents()
    for number in range(20):
        job.put({f"N{key}": number for key in range(60)})
        job.checkpoint()
        sweep(job.catalog)
    assert job.catalog.numbers() == [22, 21, 2]
    assert Job.restored(folder, job.catalog.load(2)).contents() == saved


def test_sweep_keeps_files_of_the_checkpoint_in_progress(folder):
    job = job_with(folder, 3)
    job.put({f"N{key}": 0 for key in range(100)})
    for executor in (0, 1):
        job.write(executor, job.cut(executor, 4))
    sweep(job.catalog)
    assert {name for name in files(folder) if "/0000000004/" in name} == {
        "state/0000000004/0-0-g1.arrows",
        "state/0000000004/0-1-g1.arrows",
    }
    # The checkpoint was given up, but the next one needs its files.
    manifest = job.checkpoint(5)
    sweep(job.catalog)
    assert Job.restored(folder, manifest).contents() == job.contents()


def test_sweep_deletes_files_of_given_up_checkpoints_and_temporary_ones(tmp_path):
    folder = CheckpointFolder(tmp_path)
    job = job_with(folder, 1)
    for path in ("state/0000000001/.a.partial", "state/0000000000/0-0-g1.arrows", "topology/000000.pickle"):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_bytes(b"partial")
    (tmp_path / "state" / "0000000000" / "empty").mkdir()
    (tmp_path / "notes.txt").write_bytes(b"mine")
    job.put({"N1": -1})
    manifest = job.checkpoint()
    (tmp_path / "state" / "0000000000" / "empty").rmdir()
    sweep(job.catalog)
    names = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    first = job.catalog.manifest(1)
    needed = {file.path for kept in (first, manifest) for file in kept.files}
    assert names == {*needed, *map(manifest_file.path_of, (1, 2)), "generations/000001", "notes.txt"}


def test_sweep_deletes_a_bounded_number_of_files(folder):
    job = job_with(folder, 10, most=4)
    left = len(files(folder))
    while not (swept := sweep(job.catalog, most=3)).finished:
        assert swept.deleted == 3
        assert len(files(folder)) == left - 3
        left -= 3
    assert job.catalog.numbers() == [10, 9]


def test_sweep_without_a_complete_checkpoint_deletes_nothing(folder):
    job = Job(folder)
    job.put({"N1": 1})
    job.write(*next((executor, cut) for executor in (0, 1) if (cut := job.cut(executor, 1)) is not None))
    before = files(folder)
    assert sweep(job.catalog) == Swept(0, True)
    assert files(folder) == before


def test_topologies_of_earlier_generations_are_swept(folder):
    job = job_with(folder, 2)
    for _ in range(3):
        job = Job.restored(folder, job.catalog.load())
        job.put({"N3": 3})
        job.checkpoint()
    sweep(job.catalog)
    assert sorted(folder.sizes("topology")) == ["000003.pickle", "000004.pickle"]


def test_sweep_needs_a_checkpoint_to_keep(folder):
    with pytest.raises(ValueError, match="keep=0"):
        sweep(Catalog(folder), keep=0)


def test_end_and_start_of_generations_are_forgotten_with_them(tmp_path):
    folder = CheckpointFolder(tmp_path)
    for _ in range(40):
        generation = next_generation(folder)
        record_base(folder, generation, 7)
        assert may_run(folder)
        note_ended(folder, generation)
        assert not may_run(folder)
    assert max(recorded_bases(folder).items()) == (40, 7)
    assert len(folder.sizes("generations")) < 60
