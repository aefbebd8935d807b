"""The state of one operator in a checkpoint, which is read in parts."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from dask_elastic.checkpoint import state_file
from dask_elastic.checkpoint.catalog import Catalog
from dask_elastic.checkpoint.folder import CheckpointFolder
from dask_elastic.checkpoint.manifest import Manifest, OperatorState
from dask_elastic.checkpoint.restore import restore_executor
from dask_elastic.state.results import empty_state, state_table
from dask_elastic.state.store import KeyedStore
from dask_elastic.topology.operators import Compute
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
        """Return the columns; types are null if no row had arrived before the checkpoint. Reads the smallest file.

        Parameters
        ----------
        columns : sequence of str, optional
            As for `read`.
        """
        files = [file for chain in self.state.chains for file in chain.files]
        for file in sorted(files, key=lambda file: file.nbytes):
            schema = state_file.read(self.folder, file).header.input_schema
            if schema is not None:
                return _chosen(empty_state(self.definition, schema), columns).schema
        return _chosen(empty_state(self.definition, None), columns).schema

    def read(self, part: int, parts: int, columns: Sequence[str] | None = None) -> pa.Table:
        """Read a part.

        Parameters
        ----------
        part : int
            Which one, from 0.
        parts : int
            The number of parts, at most that of all shards.
        columns : sequence of str, optional
            The columns to return, in this order; all by default.

        Returns
        -------
        Table
            One row per key, as `read_state` returns them.

        Raises
        ------
        ValueError
            When there are not so many shards.
        CheckpointError
            When a file is damaged, or classes that the state needs cannot be imported.
        KeyError
            When there is no such column.
        """
        if not 1 <= parts <= self.state.groups:
            raise ValueError(f"parts={parts!r}: choose from 1 to {self.state.groups}, the number of shards")
        definition = self.definition
        store = KeyedStore(1, lambda hashes: np.zeros(len(hashes), np.int32))
        found = restore_executor(self.folder, self.state, part, parts, store)
        if found.input_schema is None or store.key_schema is None:
            return _chosen(self.schema().empty_table(), columns)
        keys, values = store.rows()
        return _chosen(state_table(definition, found.input_schema, keys, values, self.manifest.started), columns)


def _chosen(table: pa.Table, columns: Sequence[str] | None) -> pa.Table:
    if columns is None:
        return table
    if unknown := [name for name in columns if name not in table.column_names]:
        raise KeyError(f"there is no column {unknown[0]!r}; the columns are {', '.join(table.column_names)}")
    return table.select(list(columns))
