"""A source over Parquet files, which the workers read."""

from __future__ import annotations

import hashlib
import json
import os
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from dask_elastic.connectors.sources.column_source import ColumnSource
from dask_elastic.connectors.storage import find_files, full_path
from dask_elastic.topology.pace import cut
from dask_elastic.topology.source import SourceContext
from dask_elastic.topology.state_kind import Duration
from dask_elastic.vocab.errors import SourceError, TopologyError
from dask_elastic.vocab.text.shown_error import shown_error
from dask_elastic.vocab.text.shown_url import shown_url

SUFFIXES = (".parquet", ".parq", ".pq")


class Parquet(ColumnSource):
    """Read Parquet files on the workers.

    Parameters
    ----------
    path : str, path, or sequence of them
        A file, a directory (searched recursively; directories named `key=value` become columns), a glob, or a URL of
        any of these. All workers must be able to read the files under this path; the client need not.
    columns : sequence of str, optional
        The columns to offer; all by default. In any case only columns that operators use are decoded.
    rate : float, optional
        Largest number of rows per second over all instances; no limit by default.
    event_time : str, optional
        The column with the event time of each row; of a timestamp or date type. Times without a zone
        count as UTC.
    slack : str, float or timedelta, optional
        How far a row's event time may lie behind the newest seen so far before the row counts as late, such as
        "5 min"; 0 by default.
    batch_rows : int, default 65536
        Largest number of rows that are read at once; with a rate, at most 0.1 s of rows. Batches that wait are joined,
        so functions may get more.
    parallel : int, default 1
        Number of instances that read at the same time. Files are assigned to them round-robin; row groups, if there
        are fewer files than instances.
    storage_options : mapping, optional
        Options for fsspec.

    Raises
    ------
    TopologyError
        When no path is given, or an option is invalid.

    Notes
    -----
    Files are read in the order given, those of a directory or glob in the order of their paths. The schema is that of
    the first file. Several instances divide the files that the first of them finds. The offset is a digest of the
    files' paths and sizes, then file, row group and row. `read` refuses an offset whose digest differs, because other
    files would lose or repeat rows.

    Examples
    --------
    >>> Parquet("/data/flights/*.parquet", event_time="sched_dep", rate=20_000)
    Parquet('/data/flights/*.parquet', rate=20000, event_time='sched_dep')
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        *,
        columns: Sequence[str] | None = None,
        rate: float | None = None,
        event_time: str | None = None,
        slack: Duration | None = None,
        batch_rows: int = 65_536,
        parallel: int = 1,
        storage_options: Mapping[str, Any] | None = None,
    ):
        super().__init__(rate=rate, event_time=event_time, slack=slack, parallel=parallel, columns=columns)
        if not isinstance(batch_rows, int) or batch_rows < 1:
            raise TopologyError(f"sources.Parquet: batch_rows is {batch_rows!r}; give 1 or more.")
        paths = [path] if isinstance(path, str | os.PathLike) else path
        if not isinstance(paths, Sequence) or not all(isinstance(one, str | os.PathLike) for one in paths) or not paths:
            raise TopologyError(f"sources.Parquet takes a path, or a list of at least one, not {path!r}.")
        self.paths = tuple(full_path(one) for one in paths)
        self.batch_rows = batch_rows
        self.storage_options = None if storage_options is None else dict(storage_options)

    def _what(self) -> str:
        paths = [shown_url(path) for path in self.paths]
        return repr(paths[0] if len(paths) == 1 else paths)

    def check(self) -> None:
        """Check that the columns exist and that event time is a timestamp or date, if the client can read the files.

        URLs are not checked here: the workers may have credentials that the client lacks.

        Raises
        ------
        SourceError
            When they do not; names the column and the columns that exist.
        """
        if (offered := self._offered()) is not None:
            self._names(offered)

    def _offered(self) -> pa.Schema | None:
        files = None if any("://" in path for path in self.paths) else self._files()
        return None if files is None else files.dataset.schema

    def read(self, context: SourceContext) -> Iterator[tuple[pa.RecordBatch, object]]:
        """Read the instance's files or row groups.

        Parameters
        ----------
        context : SourceContext
            The instance, the number of instances, and the offset to resume from.

        Yields
        ------
        tuple of RecordBatch and (str, int, int, int)
            Rows, and the offset after them.

        Raises
        ------
        SourceError
            When a file cannot be read, the files changed since the offset was taken, or as `check`.
        """
        # Files may appear while the instances list them, and would change which ones each of them reads.
        files = self._files(context.agreed)
        if files is None:
            raise SourceError(
                f"{self!r}: this worker finds no Parquet file there; give a path that all workers can read."
            )
        names = self._names(files.dataset.schema)
        digest = f"{files.digest}/{context.instances}"
        begin = self._begin(context.offset, digest)
        most = self._rows_at_once(self.batch_rows, context.instances)
        for file, group, fragment in files.parts(context.instance, context.instances):
            if (file, group) < begin[:2]:
                continue
            position = skip = begin[2] if (file, group) == begin[:2] else 0
            for batch in self._batches(fragment, files.dataset.schema, names):
                passed = min(skip, batch.num_rows)
                skip -= passed
                for rows in cut(batch.slice(passed), most):
                    if context.stopping():
                        return
                    position += rows.num_rows
                    yield rows, (digest, file, group, position)

    def _begin(self, offset: object, digest: str) -> tuple[int, int, int]:
        if offset is None:
            return 0, 0, 0
        if not isinstance(offset, tuple) or len(offset) != 4:
            raise self._no_offset(offset)
        if offset[0] != digest:
            raise SourceError(
                f"{self!r}: the files or the number of instances changed since the job started, so it cannot resume. "
                "Restore them, or submit the job anew."
            )
        return offset[1], offset[2], offset[3]

    def _batches(self, fragment: Any, schema: pa.Schema, names: list[str]) -> Iterator[pa.RecordBatch]:
        # One thread: the worker's cores are reserved for tasks.
        scan = fragment.to_batches(
            schema=schema, columns=names, batch_size=self.batch_rows, batch_readahead=2, use_threads=False
        )
        try:
            yield from scan
        except (OSError, pa.ArrowException) as error:
            raise SourceError(f"{self!r}: cannot read {shown_url(f'{fragment.path}: {error}')}") from shown_error(error)

    def _files(self, agreed: Callable[[bytes], bytes] | None = None) -> _Files | None:
        """Return the files that all instances read; None if there are none."""
        import pyarrow.dataset as ds  # imports pandas, too

        try:
            found = [find_files(path, SUFFIXES, self.storage_options) for path in self.paths]
            sizes = {info.path: info.size for files in found for info in files.infos}
            if not sizes:
                return None
            if agreed is not None:
                sizes = dict(json.loads(zlib.decompress(agreed(zlib.compress(json.dumps([*sizes.items()]).encode())))))
            if any(not files.filesystem.equals(found[0].filesystem) for files in found):
                raise SourceError(f"{self!r}: the paths are on several file systems; use one source for each.")
            searched = len(found) == 1 and list(sizes) != [found[0].root]
            dataset = ds.dataset(
                list(sizes),
                filesystem=found[0].filesystem,
                format="parquet",
                partitioning="hive" if searched else None,
                partition_base_dir=found[0].root if searched else None,
            )
        except (OSError, ValueError, ImportError, pa.ArrowException) as error:
            raise SourceError(f"{self!r}: cannot be opened: {shown_url(error)}") from shown_error(error)
        listing = "\n".join(f"{path} {size}" for path, size in sizes.items())
        return _Files(dataset, hashlib.blake2b(listing.encode(), digest_size=8).hexdigest())


@dataclass(frozen=True)
class _Files:
    dataset: Any
    digest: str

    def parts(self, instance: int, instances: int) -> Iterator[tuple[int, int, Any]]:
        """Yield file, row group and fragment for each row group of one instance, opening one file at a time."""
        fragments = list(self.dataset.get_fragments())
        by_file = len(fragments) >= instances
        turn = 0
        for file, fragment in enumerate(fragments):
            if by_file and file % instances != instance:
                continue
            for part in fragment.split_by_row_group():
                if by_file or turn % instances == instance:
                    yield file, part.row_groups[0].id, part
                turn += 1
