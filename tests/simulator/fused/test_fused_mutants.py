"""Mutants of fused computes: the checks must find each injected fault."""

from __future__ import annotations

import numpy as np
import pyarrow.compute as pc
import pytest
from fused_scenario import FusedScenario

from dask_elastic.executor.fused.fused_compute import FusedCompute
from dask_elastic.executor.fused.typed_stream import TypedStream
from dask_elastic.executor.primary_state import PrimaryState
from dask_elastic.executor.recovery import Recovery
from dask_elastic.executor.remote import RemotePart
from dask_elastic.state.codec import decode
from dask_elastic.state.fused import packing
from dask_elastic.state.fused.component_store import ComponentStore
from dask_elastic.state.fused.fused_store import FusedStore
from dask_elastic.state.fused.key_link import KeyLink
from dask_elastic.state.storage import Storage
from dask_elastic.state.store import KeyedStore

MOST_SEEDS = 60

TRIED_FIRST = (58, 22, 15)
"""Seeds that find what most others do not."""


def move_leaves_the_state_of_fused_computes(monkeypatch):
    """What is copied of a shard is the state of the first compute."""
    monkeypatch.setattr(ComponentStore, "extract", KeyedStore.extract)


def home_ignores_the_state_of_fused_computes(monkeypatch):
    """What remote tasks flush is installed for the first compute only."""
    real = packing.unpack
    monkeypatch.setattr(packing, "unpack", lambda batch: {name: p for name, p in real(batch).items() if not name})


def changes_of_fused_computes_are_not_marked(monkeypatch):
    monkeypatch.setattr(FusedStore, "track_dirty", False)


def label_flushes_the_first_compute_only(monkeypatch):
    """The last changes of fused computes do not reach the primary copy before a shard moves, and are lost."""
    real = RemotePart._label

    def label(self, task, shard, stays):
        for store in self.store.fused.values():
            store.extract([shard], dirty_only=True)
        return real(self, task, shard, stays)

    monkeypatch.setattr(RemotePart, "_label", label)


def keys_are_placed_by_all_of_their_columns(monkeypatch):
    """A key of a fused compute gets the shard of its own hash."""
    real = FusedCompute.__init__

    def init(self, *given):
        real(self, *given)
        self._stream._exit = self._stream._exit.__class__(self.name, self._stream._exit.keys)

    monkeypatch.setattr(FusedCompute, "__init__", init)


def rows_are_routed_by_all_keys(monkeypatch):
    """The rows for the first compute are routed by the hash of all its keys."""
    real = TypedStream.__init__

    def init(self, component, exit_):
        real(self, component, exit_)
        if component == "numbers":
            self._exit = exit_.__class__(exit_.target, exit_.keys, exit_.columns)

    monkeypatch.setattr(TypedStream, "__init__", init)


def fused_compute_gets_rows_in_reverse(monkeypatch):
    real = FusedCompute.process

    def process(self, rows, producer):
        return real(self, rows.take([*range(rows.num_rows)][::-1]), producer)

    monkeypatch.setattr(FusedCompute, "process", process)


def rows_count_twice_after_a_loss(monkeypatch):
    """What the primary copy of a shard has is replayed as well."""
    real = Recovery._lacking

    def lacking(self, task, sent, now):
        left, task.pending.left = task.pending.left, {}
        try:
            yield from list(real(self, task, sent, now))
        finally:
            task.pending.left = left

    monkeypatch.setattr(Recovery, "_lacking", lacking)


def cut_leaves_out_fused_computes(monkeypatch):
    monkeypatch.setattr(PrimaryState, "stores", lambda self, component: {component: self})


def cut_gives_fused_computes_the_state_of_the_first(monkeypatch):
    """The parts of a checkpoint have the names of all computes, and one state."""
    monkeypatch.setattr(PrimaryState, "stores", lambda self, component: dict.fromkeys([component, *self.fused], self))


def cut_lacks_the_tombstones_of_fused_computes(monkeypatch):
    real = Storage.cut

    def cut(self, store, in_full):
        parts = real(self, store, in_full)
        if not isinstance(store, FusedStore):
            return parts
        batches = [batch for part in parts for batch in part.batches()]
        return [decode(batch.filter(pc.invert(batch.column("__deleted")))) for batch in batches]

    monkeypatch.setattr(Storage, "cut", cut)


def flush_lacks_the_tombstones_of_fused_computes(monkeypatch):
    real = FusedStore.extract

    def extract(self, shards=None, dirty_only=False, clear=None):
        state = real(self, shards, dirty_only, clear)
        return state if state is None else state.filter(pc.invert(state.column("__deleted")))

    monkeypatch.setattr(FusedStore, "extract", extract)


def link_has_the_slots_of_other_keys(monkeypatch):
    real = KeyLink.note

    def note(self, before, found):
        real(self, before, found)
        self._slots[before.slots] = np.roll(self._slots[before.slots], 1)
        self._alike = 0

    monkeypatch.setattr(KeyLink, "note", note)


def link_takes_all_slots_for_alike(monkeypatch):
    """Keys that the stores have got in different orders are found in the slots of the first one."""

    def note_alike(self, noted):
        self._alike = len(self._slots)

    monkeypatch.setattr(KeyLink, "_note_alike", note_alike)


MUTANTS = [
    value
    for name, value in dict(globals()).items()
    if callable(value) and getattr(value, "__module__", "") == __name__ and not name.startswith("_")
]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_mutant_is_found(mutant, monkeypatch):
    mutant(monkeypatch)
    for seed in [*TRIED_FIRST, *range(MOST_SEEDS)]:
        if FusedScenario(seed).fails():
            return
    pytest.fail(f"{MOST_SEEDS} seeds do not find that {mutant.__name__}")
