"""The state of one operator in a checkpoint, which is read in parts."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dask_elastic.checkpoint import state_file
from dask_elastic.checkpoint.catalog import Catalog
from dask_elastic.checkpoint.folder import CheckpointFolder
from dask_elastic.checkpoint.manifest import Manifest, OperatorState
from dask_elastic.checkpoint.regrouping import Regrouping
from dask_elastic.checkpoint.restore import SHARD, event_time_of, install, source_batches
from dask_elastic.checkpoint.spilled_parts import SpilledParts
from dask_elastic.state.results import empty_state, state_table
from dask_elastic.state.store import KeyedStore
from dask_elastic.topology.operators import Compute
from dask_elastic.vocab.arrow_arrays import array_of, numpy_of
from dask_elastic.vocab.errors import CheckpointError

PART_BYTES = 64_000_000
"""Bytes of files that one part has by default."""


@dataclass(frozen=True)
class SavedState:
    """The state of an operator in a checkpoint.

    Parameters
    ----------
    folder : CheckpointFolder
        The folder.
    manifest : Manifest
        The checkpoint.
    state : OperatorState
        The operator's part of it.
    """

    folder: CheckpointFolder
    manifest: Manifest
    state: OperatorState

    @classmethod
    def open(
        cls,
        url: str | os.PathLike[str],
        operator: str,
        checkpoint: int | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> SavedState:
        """Find the state of an operator; see `read_state`."""
        folder = CheckpointFolder(url, storage_options)
        return cls.of(folder, Catalog(folder).load(checkpoint), operator)

    @classmethod
    def of(cls, folder: CheckpointFolder, manifest: Manifest, operator: str) -> SavedState:
        """Return the state of an operator in a checkpoint.

        Raises
        ------
        UnknownOperator
            When the checkpoint has no state of the operator.
        """
        return cls(folder, manifest, manifest.state(operator))

    @property
    def executors(self) -> int:
        """The number of executors that wrote it."""
        return self.state.executors

    @property
    def parts(self) -> int:
        """The number of parts in which it is read by default."""
        nbytes = sum(file.nbytes for chain in self.state.chains for file in chain.files)
        return min(self.state.groups, max(self.executors, -(-nbytes // PART_BYTES)))

    def portions(self, parts: int) -> int:
        """Return in how many smaller parts each of so many parts is read, so that it fits into memory.

        Parameters
        ----------
        parts : int
            The number of parts, at most that of all shards.
        """
        return max(1, min(self.state.groups // parts, -(-self.parts // parts)))

    @cached_property
    def definition(self) -> Compute:
        """The operator, without its function.

        Raises
        ------
        CheckpointError
            When classes that it needs cannot be imported.
        """
        if self.state.reading is None:
            raise CheckpointError(
                f"checkpoint {self.manifest.number} of job {self.manifest.job!r} does not say how the state of "
                f"operator {self.state.name!r} is read. Resume the job, and read the state with Job.state."
            )
        loaded: Compute = self.state.reading.load(f"the definition of operator {self.state.name!r}")
        return loaded

    def schema(self, columns: Sequence[str] | None = None) -> pa.Schema:
        """Return the columns; types are null if no row had arrived before the checkpoint. Reads no file as a whole.

        Parameters
        ----------
        columns : sequence of str, optional
            As for `scan`.
        """
        return self._no_rows(self._input_schema, columns).schema

    @cached_property
    def _input_schema(self) -> pa.Schema | None:
        files = [file for chain in self.state.chains for file in chain.files]
        headers = (state_file.read_header(self.folder, file) for file in sorted(files, key=lambda file: file.nbytes))
        return next((header.input_schema for header in headers if header.input_schema is not None), None)

    def scan(self, some: range, parts: int, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
        """Read parts that follow each other; each file that they need is read once.

        Parameters
        ----------
        some : range
            Which ones, from 0.
        parts : int
            The number of all parts, at most that of all shards.
        columns : sequence of str, optional
            The columns to return, in this order; all by default.

        Yields
        ------
        Table
            One row per key, as `read_state` returns them; one table per part.

        Raises
        ------
        ValueError
            When there are not so many shards.
        CheckpointError
            When a file is damaged, classes that the state needs cannot be imported, or there is no space for temporary
            files.
        KeyError
            When there is no such column.

        Notes
        -----
        In a file, the rows of all shards are mixed. So the rows of the first part that needs a file are installed while
        it is read, and those of later parts are kept, beyond some in memory in temporary files. Parts follow each other
        in the order of executors, so temporary files have at most the state of one executor.
        """
        if not 1 <= parts <= self.state.groups:
            raise ValueError(f"parts={parts!r}: choose from 1 to {self.state.groups}, the number of shards")
        regrouping = Regrouping(self.executors, self.state.shards, parts)
        unread = regrouping.sources(some.start)[0]
        input_schema = None
        with SpilledParts() as spilled:
            for part in some:
                store = KeyedStore(1, lambda hashes: np.zeros(len(hashes), np.int32))
                for batch in spilled.take(part):
                    install(store, state_file.header_of(batch), batch)
                for source in range(unread, regrouping.sources(part)[-1] + 1):
                    part_of = self._part_of(regrouping, source, some)
                    for header, batch in source_batches(self.folder, self.state, source):
                        input_schema = header.input_schema or input_schema
                        for other, rows in () if batch is None else _split(batch, part_of):
                            if other == part:
                                install(store, header, rows)
                            else:
                                spilled.add(other, rows)
                    unread = source + 1
                reached = event_time_of(self.state, regrouping.sources(part))
                yield self._table(store, input_schema or self._input_schema, columns, reached)

    def _part_of(self, regrouping: Regrouping, source: int, some: range) -> npt.NDArray[np.int64]:
        """Return the part of each shard of an executor, -1 for parts that are not wanted."""
        groups = source * self.state.shards + np.arange(self.state.shards)
        part_of = groups * regrouping.wanted // self.state.groups
        return np.where((part_of >= some.start) & (part_of < some.stop), part_of, -1)

    def _table(
        self, store: KeyedStore, input_schema: pa.Schema | None, columns: Sequence[str] | None, event_time: int | None
    ) -> pa.Table:
        if input_schema is None or store.key_schema is None:
            return self._no_rows(input_schema, columns)
        keys, values = store.rows()
        shown = state_table(self.definition, input_schema, keys, values, self.manifest.started, event_time)
        return _chosen(shown, columns)

    def _no_rows(self, input_schema: pa.Schema | None, columns: Sequence[str] | None) -> pa.Table:
        return _chosen(empty_state(self.definition, input_schema), columns)


def _split(batch: pa.RecordBatch, part_of: npt.NDArray[np.int64]) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield the rows of each part, in their order."""
    parts = part_of[numpy_of(batch.column(SHARD))]
    if (parts == parts[0]).all():
        if parts[0] >= 0:
            yield int(parts[0]), batch
        return
    order = np.argsort(parts, kind="stable")
    first = int(np.count_nonzero(parts < 0))
    batch = batch.take(array_of(order[first:]))
    present, starts = np.unique(parts[order[first:]], return_index=True)
    for part, start, end in zip(present.tolist(), starts, [*starts[1:], batch.num_rows], strict=True):
        yield part, batch.slice(start, end - start)


def _chosen(table: pa.Table, columns: Sequence[str] | None) -> pa.Table:
    if columns is None:
        return table
    if unknown := [name for name in columns if name not in table.column_names]:
        raise KeyError(f"there is no column {unknown[0]!r}; the columns are {', '.join(table.column_names)}")
    return table.select(list(columns))
