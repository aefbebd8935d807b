"""A stand-in for the engine: the state of one operator, its checkpoints, and its recovery from them."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from dask_elastic.checkpoint import state_file
from dask_elastic.checkpoint.catalog import Catalog
from dask_elastic.checkpoint.chain import Chain
from dask_elastic.checkpoint.generations import next_generation
from dask_elastic.checkpoint.manifest import Manifest, OperatorState
from dask_elastic.checkpoint.pickled import Pickled
from dask_elastic.checkpoint.read_state import reading_of
from dask_elastic.checkpoint.restore import restore_executor
from dask_elastic.checkpoint.state_file import StateHeader
from dask_elastic.routing.hashing import hash_columns
from dask_elastic.routing.keyspace import KeySpace
from dask_elastic.state import KeyedStore, StateRows, decode, encode
from dask_elastic.topology.aggregate import Count, Max
from dask_elastic.topology.aggregates.bundle import Bundle
from dask_elastic.topology.aggregates.grouping import Grouping
from dask_elastic.topology.operators import Compute
from dask_elastic.vocab.errors import CheckpointCorrupt, CheckpointError

INPUT = pa.schema({"plane": pa.string(), "delay": pa.int64()})
PLANES = Compute("planes", ("plane",), {"flights": Count(), "worst": Max("delay")})
BUNDLE = Bundle(PLANES.aggregates, INPUT)


class Job:
    """One stateful operator with several executors, which takes checkpoints in the order of the engine."""

    def __init__(self, folder, executors=2, shards=4, most=32):
        self.folder = folder
        self.catalog = Catalog(folder)
        self.generation = next_generation(folder)
        self.space = KeySpace(executors, shards)
        self.stores = [self._store() for _ in range(executors)]
        self.chains = [Chain(shards, most=most) for _ in range(executors)]
        self.topology = folder.write(f"topology/{self.generation:06d}.pickle", [b"pickled topology"])
        self.rows = 0

    def _store(self):
        store = KeyedStore(self.space.shards, self.space.shard_of, track_dirty=True)
        store.declare(pa.schema([INPUT.field("plane")]), BUNDLE.fields)
        return store

    def put(self, delays):
        """Set the state of planes; None deletes it."""
        rows = pa.record_batch({"plane": list(delays), "delay": [delay or 0 for delay in delays.values()]}, INPUT)
        hashes = hash_columns(rows, ("plane",))
        count = rows.num_rows
        values = BUNDLE.update(BUNDLE.initial(count), rows, Grouping(np.arange(count), count))
        deleted = np.array([delay is None for delay in delays.values()], np.bool_)
        owners = self.space.executor_of(hashes)
        for executor, store in enumerate(self.stores):
            at = np.flatnonzero(owners == executor)
            keys = rows.select(["plane"]).take(pa.array(at))
            shards = self.space.shard_of(hashes[at]).astype(np.int32)
            state = StateRows(
                hashes[at],
                np.zeros(len(at), np.uint64),
                shards,
                keys,
                BUNDLE.fields,
                [value[at] for value in values],
                deleted[at],
            )
            store.install(encode(state), dirty=True)

    def cut(self, executor, number):
        """Copy what the chain asks for; return the header and the rows, None if there is nothing to write."""
        store, shards = self.stores[executor], self.space.shards
        live = np.bincount(decode(store.extract()).shards, minlength=shards)
        changes = store.extract(dirty_only=True)
        changed = np.bincount(changes.column("__shard").to_numpy(), minlength=shards)
        self.chains[executor] = chain = self.chains[executor].cut(number, changed, live)
        if not chain.is_cut(number):
            return None
        full = chain.full(number)
        kept = ~np.isin(changes.column("__shard").to_numpy(), [*full])
        parts = [decode(store.extract(sorted(full))), decode(changes.filter(pa.array(kept)))]
        self.rows += sum(map(len, parts))
        header = StateHeader("planes", executor, self.space.executors, shards, number, full, INPUT)
        return header, parts

    def write(self, executor, cut, compression=None):
        header, parts = cut
        try:
            path = state_file.path_of(0, header, self.generation)
            file = state_file.write(self.folder, path, header, parts, compression)
        except CheckpointError:
            self.chains[executor] = self.chains[executor].failed(header.number)
            raise
        self.chains[executor] = self.chains[executor].written(header.number, file)

    def checkpoint(self, number=None, savepoint=False, compression=None):
        """Take a checkpoint; return its manifest."""
        number = self.catalog.next_number() if number is None else number
        cuts = [self.cut(executor, number) for executor in range(len(self.stores))]
        for executor, cut in enumerate(cuts):
            if cut is not None:
                self.write(executor, cut, compression)
        chains = tuple(chain.at(number) for chain in self.chains)
        states = OperatorState("planes", ("plane",), *self._shape(), chains, reading_of(PLANES))
        manifest = Manifest(
            "delays",
            number,
            self.generation,
            100.0 + number,
            100.5 + number,
            self.topology,
            {"flights": "source", "planes": "compute"},
            (states,),
            {"flights": (Pickled.of(number), None)},
            savepoint=savepoint,
        )
        self.catalog.publish(manifest)
        return manifest

    def _shape(self):
        return self.space.executors, self.space.shards

    def contents(self):
        """Return the state as plain Python."""
        return contents(self.stores)

    @classmethod
    def restored(cls, folder, manifest, executors=None):
        """Return the job as it was at a checkpoint, with another number of executors if wanted."""
        state = manifest.state("planes")
        executors = executors or state.executors
        job = cls(folder, executors, state.groups // executors)
        job.stores = [KeyedStore(job.space.shards, job.space.shard_of, track_dirty=True) for _ in range(executors)]
        folder.read(manifest.topology)
        restored = [
            restore_executor(folder, state, executor, executors, store) for executor, store in enumerate(job.stores)
        ]
        job.chains = [part.chain for part in restored]
        return job

    @classmethod
    def recovered(cls, folder):
        """Return the newest checkpoint that can be read, and the job restored from it, as the engine does."""
        catalog = Catalog(folder)
        manifest = catalog.load()
        damage = None
        while True:
            try:
                return manifest, cls.restored(folder, manifest)
            except CheckpointCorrupt as error:
                damage = damage or error
                if not any(number < manifest.number for number in catalog.numbers()):
                    raise damage from None
                manifest = catalog.load(below=manifest.number)


def contents(stores):
    """Return the state of several stores as plain Python: the worst delay by plane."""
    found = {}
    for store in stores:
        if store.key_schema is not None:
            keys, (_, worst, _) = store.rows()
            found |= dict(zip(keys["plane"].to_pylist(), worst.tolist(), strict=True))
    return found
