"""Damage of every kind to every kind of file is found, and the newest undamaged checkpoint is recovered."""

from __future__ import annotations

import logging

import fsspec
import numpy as np
import pytest
from checkpointed import Job

from dask_elastic.checkpoint import folder, manifest_file
from dask_elastic.checkpoint.catalog import Catalog
from dask_elastic.checkpoint.folder import CheckpointFolder
from dask_elastic.vocab.errors import CheckpointCorrupt

DAMAGES = 1000
CHECKPOINTS = 4


class Storage:
    """The files of a job in memory, which can be damaged and made whole again."""

    def __init__(self):
        self.folder = CheckpointFolder("memory://damaged")
        job = Job(self.folder, executors=2, shards=2)
        job.put({f"N{number}": number for number in range(40)})
        self.states = {}
        self.needs = {}
        for number in range(1, CHECKPOINTS + 1):
            job.put({"N1": number, "N2": -number, f"N{number}": None})
            manifest = job.checkpoint()
            self.states[number] = job.contents()
            self.needs[number] = {manifest_file.path_of(number), *(file.path for file in manifest.files)}
        paths = {path for needed in self.needs.values() for path in needed}
        self.whole = {path: self.folder.read_unchecked(path).to_pybytes() for path in sorted(paths)}

    def put(self, path, contents):
        """Replace a file; None deletes it."""
        filesystem = fsspec.filesystem("memory")
        if contents is None:
            filesystem.rm_file(f"/damaged/{path}")
        else:
            filesystem.pipe_file(f"/damaged/{path}", contents)

    def heal(self):
        """Restore all files, and delete those of recovered jobs."""
        filesystem = fsspec.filesystem("memory")
        filesystem.store.clear()
        self.folder.claim("generations/000001")
        for path, contents in self.whole.items():
            self.put(path, contents)


def flipped(contents, rng):
    found = bytearray(contents)
    for _ in range(int(rng.integers(1, 4))):
        found[rng.integers(len(found))] ^= 1 << int(rng.integers(8))
    return bytes(found)


def zeroed(contents, rng):
    start = int(rng.integers(len(contents)))
    stop = min(len(contents), start + 512)
    return contents[:start] + bytes(stop - start) + contents[stop:]


def damaged(files, rng):
    """Return some files with other contents, None for a missing file; one to three files."""
    after = {}
    for path in rng.choice(sorted(files), int(rng.integers(1, 4)), replace=False).tolist():
        contents = files[path]
        match int(rng.integers(6)):
            case 0:
                after[path] = None
            case 1:
                after[path] = contents[: rng.integers(len(contents))]
            case 2:
                after[path] = contents + bytes(rng.integers(0, 256, int(rng.integers(1, 99)), np.uint8))
            case 3:
                after[path] = zeroed(contents, rng)
            case 4:
                other = str(rng.choice(sorted(files)))
                after[path], after[other] = files[other], contents
            case _:
                after[path] = flipped(contents, rng)
    return {path: contents for path, contents in after.items() if contents != files[path]}


def test_damage_is_always_found_and_the_previous_checkpoint_is_recovered(monkeypatch):
    # Deadlines have tests of their own, and a thread for each call takes longer than all else here.
    monkeypatch.setattr(folder, "within", lambda allowed, action, storage="": action())
    storage = Storage()
    logging.getLogger("dask_elastic.checkpoint").setLevel(logging.ERROR)
    outcomes = []
    try:
        for seed in range(DAMAGES):
            damages = damaged(storage.whole, np.random.default_rng(seed))
            for path, contents in damages.items():
                storage.put(path, contents)
            outcomes.append(_check(storage, set(damages), f"seed {seed} damages {sorted(damages)}"))
            storage.heal()
    finally:
        logging.getLogger("dask_elastic.checkpoint").setLevel(logging.NOTSET)
    # Every case occurred: the newest, each older one, none left.
    assert set(outcomes) == {*range(CHECKPOINTS + 1)}


def _check(storage, damages, message):
    """Compare what is recovered with the newest checkpoint that is whole; return its number, 0 for none."""
    whole = [number for number, needed in storage.needs.items() if not needed & damages]
    catalog = Catalog(storage.folder)
    if not whole:
        manifests = {path for path in storage.whole if path.startswith("manifests/")}
        for recover in (lambda: Job.recovered(storage.folder), lambda: catalog.load(verify=True)):
            with pytest.raises(CheckpointCorrupt) as caught:
                recover()
            path = caught.value.path.removeprefix("memory://damaged/")
            assert path in damages | manifests, message
            assert caught.value.wanted != caught.value.got, message
        return 0
    assert catalog.load(verify=True).number == max(whole), message
    manifest, job = Job.recovered(storage.folder)
    assert manifest.number == max(whole), message
    assert job.contents() == storage.states[max(whole)], message
    return max(whole)
