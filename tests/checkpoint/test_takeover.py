"""Two schedulers that continue a job, and a lost one that still completes a checkpoint: every order of their requests.

Each of the three may also stop anywhere: the checks run after each step.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest

from dask_elastic.checkpoint import catalog as catalogs
from dask_elastic.checkpoint import takeover
from dask_elastic.checkpoint.catalog import Catalog
from dask_elastic.checkpoint.file_ref import FileRef
from dask_elastic.checkpoint.generations import is_superseded, recorded_bases
from dask_elastic.checkpoint.manifest import Manifest
from dask_elastic.simulator.durability.memory_folder import MemoryFolder
from dask_elastic.vocab.errors import CheckpointError, CheckpointSuperseded

TOPOLOGY = FileRef("topology/000001.pickle", 1, "simulated")


def manifest(number, generation):
    return Manifest("delays", number, generation, 0.0, 0.5, TOPOLOGY)


class Schedulers:
    """The lost scheduler of generation 1 completes checkpoint 2; two others continue the job."""

    def __init__(self):
        self.catalog = Catalog(MemoryFolder())
        self.catalog.folder.write(TOPOLOGY.path, [b"1"])
        takeover.requested(self.begins())
        self.started: dict[int, int] = {}
        self.committed: dict[int, int] = {}
        takeover.requested(takeover.complete_checkpoint(self.catalog, manifest(1, 1)))
        self.steps = {"lost": self.completes(2), "first": self.begins(), "second": self.begins()}
        self.requests = {name: next(steps) for name, steps in self.steps.items()}

    def begins(self):
        generation = yield from takeover.reserve_generation(self.catalog)
        base = yield from takeover.choose_checkpoint(self.catalog, generation)
        if generation > 1:
            self.started[generation] = base

    def completes(self, number):
        yield from takeover.complete_checkpoint(self.catalog, manifest(number, 1))
        self.committed[number] = 1

    def step(self, name: str) -> None:
        """Serve a request; its scheduler then makes the next one, or has ended."""
        answer = self.requests.pop(name)()
        try:
            self.requests[name] = self.steps[name].send(answer)
        except (StopIteration, CheckpointSuperseded):
            return

    def check(self) -> None:
        for generation, base in self.started.items():
            assert base >= max(self.committed, default=0), f"generation {generation} replays committed rows"
            for later, its in self.started.items():
                deleted = later > generation and its > base
                assert not deleted, f"generation {generation} deletes what generation {later} commits from {its}"


def orders(left: dict[str, int]) -> Iterator[list[str]]:
    names = [name for name, count in left.items() if count]
    if not names:
        yield []
    for name in names:
        for rest in orders({**left, name: left[name] - 1}):
            yield [name, *rest]


def all_runs() -> Iterator[Schedulers]:
    for order in orders({"lost": 2, "first": 4, "second": 4}):
        if order.index("first") > order.index("second"):
            # They do the same.
            continue
        schedulers = Schedulers()
        for name in order:
            if name in schedulers.requests:
                schedulers.step(name)
                schedulers.check()
        yield schedulers


def test_no_order_of_requests_lets_two_schedulers_commit_the_same_rows():
    runs = [(dict(run.started), bool(run.committed)) for run in all_runs()]
    assert any(committed for _, committed in runs)
    assert any(started and not committed for started, committed in runs)
    assert all(started for started, _ in runs), "the scheduler with the newest generation always starts"
    assert any(len(started) == 2 for started, _ in runs)


def chooses_before_it_reserves(monkeypatch):
    chosen = {}
    real = takeover.reserve_generation, takeover.choose_checkpoint

    def reserve_generation(catalog):
        base = yield partial(catalog.newest_from, 0)
        generation = yield from real[0](catalog)
        chosen[id(catalog), generation] = base
        return generation

    def choose_checkpoint(catalog, generation):
        return real[1](catalog, generation, base=chosen[id(catalog), generation])

    monkeypatch.setattr(takeover, "reserve_generation", reserve_generation)
    monkeypatch.setattr(takeover, "choose_checkpoint", choose_checkpoint)


def starts_although_a_later_generation_is_reserved(monkeypatch):
    def choose_checkpoint(catalog, generation):
        checkpoint = yield partial(catalog.newest_from, 0)
        yield partial(takeover.record_base, catalog.folder, generation, checkpoint)
        return checkpoint

    monkeypatch.setattr(takeover, "choose_checkpoint", choose_checkpoint)


def does_not_write_down_its_base(monkeypatch):
    monkeypatch.setattr(takeover, "record_base", lambda folder, generation, checkpoint: None)


def uses_superseded_manifests(monkeypatch):
    monkeypatch.setattr(catalogs, "is_superseded", lambda bases, generation, checkpoint: False)


def commits_although_another_scheduler_has_continued(monkeypatch):
    def complete_checkpoint(catalog, published):
        yield partial(catalog.publish, published)

    monkeypatch.setattr(takeover, "complete_checkpoint", complete_checkpoint)


MUTANTS = [
    chooses_before_it_reserves,
    starts_although_a_later_generation_is_reserved,
    does_not_write_down_its_base,
    uses_superseded_manifests,
    commits_although_another_scheduler_has_continued,
]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_mutant_is_found(mutant, monkeypatch):
    mutant(monkeypatch)
    with pytest.raises(AssertionError):
        for _ in all_runs():
            pass


def test_lost_scheduler_does_not_take_the_job_back():
    catalog = Catalog(MemoryFolder())
    own = takeover.requested(takeover.reserve_generation(catalog))
    assert takeover.requested(takeover.reserve_generation(catalog, owned=own)) == 2
    takeover.requested(takeover.reserve_generation(catalog))
    with pytest.raises(CheckpointSuperseded, match="as generation 3, this is generation 2"):
        takeover.requested(takeover.reserve_generation(catalog, owned=2))


def test_scheduler_knows_its_own_generation_that_storage_reserved_with_an_error(monkeypatch):
    catalog = Catalog(MemoryFolder())
    own = takeover.requested(takeover.reserve_generation(catalog, owner="own"))
    claim = catalog.folder.claim

    def failing(path, owner):
        claim(path, owner)
        raise CheckpointError("the storage has not answered within 30 s")

    monkeypatch.setattr(catalog.folder, "claim", failing)
    for owner in ("own", "other"):
        with pytest.raises(CheckpointError, match="has not answered"):
            takeover.requested(takeover.reserve_generation(catalog, owner=owner))
        monkeypatch.setattr(catalog.folder, "claim", claim)
        if owner == "own":
            assert takeover.requested(takeover.reserve_generation(catalog, owned=own, owner="own")) == own + 2
            own += 2
        else:
            with pytest.raises(CheckpointSuperseded, match="as generation 4, this is generation 3"):
                takeover.requested(takeover.reserve_generation(catalog, owned=own, owner="own"))
        monkeypatch.setattr(catalog.folder, "claim", failing)


def test_superseded_checkpoint_is_skipped_and_named():
    run = next(run for run in all_runs() if 1 in run.started.values() and 2 in run.catalog.numbers())
    assert is_superseded(recorded_bases(run.catalog.folder), 1, 2)
    assert run.catalog.load().number == 1
    with pytest.raises(CheckpointSuperseded, match="a later run of the job began"):
        run.catalog.manifest(2)
    assert [found.number for found in run.catalog.complete()] == [1]


def test_publishing_succeeds_if_only_the_answer_was_lost(monkeypatch):
    folder = MemoryFolder()
    catalog = Catalog(folder)
    folder.write(TOPOLOGY.path, [b"1"])
    write = folder.write

    def losing(path, buffers, rows=0):
        write(path, buffers, rows)
        return write(path, buffers, rows)

    monkeypatch.setattr(folder, "write", losing)
    catalog.publish(manifest(1, 1))
    assert catalog.load().number == 1


@pytest.mark.parametrize("above", [0, 9])
def test_scheduler_that_restarts_gives_way_to_one_that_reserves_at_the_same_time(monkeypatch, above):
    catalog = Catalog(MemoryFolder())
    owned = takeover.requested(takeover.reserve_generation(catalog, owner="lost"))
    claim = catalog.folder.claim

    def claimed(path, owner=""):
        if owner == "lost":
            monkeypatch.setattr(catalog.folder, "claim", claim)
            other = takeover.requested(takeover.reserve_generation(catalog, owner="other"))
            assert other == owned + 1
        return claim(path, owner)

    monkeypatch.setattr(catalog.folder, "claim", claimed)
    with pytest.raises(CheckpointSuperseded, match="continued the job as generation 2"):
        takeover.requested(takeover.reserve_generation(catalog, above, owned, owner="lost"))
    # The other one is not superseded by what was withdrawn.
    assert takeover.requested(takeover.choose_checkpoint(catalog, owned + 1, base=0)) == 0


def test_record_of_a_base_that_storage_writes_late_supersedes_nothing_in_use():
    # Generation 3 chose checkpoint 1, and failed; generation 4 began from checkpoint 2 of generation 2 before the
    # record of generation 3 appeared.
    bases = {1: 0, 2: 0, 3: 1, 4: 2}
    assert not is_superseded(bases, generation=2, checkpoint=2)
    assert is_superseded({1: 0, 2: 0, 3: 1}, generation=2, checkpoint=2)
    assert is_superseded({1: 0, 2: 0, 3: 1, 4: 3}, generation=2, checkpoint=2)
