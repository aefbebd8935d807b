"""The ledger of a source whose epochs survive the scheduler: in memory, in checkpoints, and by record on storage."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import replace

from dask_elastic.checkpoint.catalog import Catalog
from dask_elastic.checkpoint.epoch_spool import Covered, EpochSpool
from dask_elastic.checkpoint.file_ref import FileRef
from dask_elastic.checkpoint.folder import CheckpointFolder
from dask_elastic.checkpoint.manifest import Manifest
from dask_elastic.checkpoint.pickled import Pickled
from dask_elastic.runtime.protocol.checkpoint_parts import SourcePosition
from dask_elastic.runtime.protocol.job_calls import Submit
from dask_elastic.runtime.protocol.job_spec import ComponentSummary
from dask_elastic.runtime.scheduler.epoch_ledger import EpochLedger, LedgerSnapshot
from dask_elastic.runtime.scheduler.query_positions import QueryPositions
from dask_elastic.vocab.errors import CheckpointCorrupt, SubmitError


class SpooledLedger:
    """The ledger of one source, and where its records are.

    Parameters
    ----------
    ledger : EpochLedger
        The ledger.
    spool : EpochSpool
        Its records on storage.
    keep : int
        How many complete checkpoints are kept.
    """

    def __init__(self, ledger: EpochLedger, spool: EpochSpool, keep: int):
        self.ledger = ledger
        self.spool = spool
        self._keep = keep
        self._covered: deque[Covered] = deque(maxlen=keep)

    @classmethod
    def load(
        cls, folder: CheckpointFolder, job: str, summary: ComponentSummary, manifest: Manifest | None, keep: int
    ) -> SpooledLedger:
        """Open the ledger of a source as a checkpoint and the records behind it define it.

        Parameters
        ----------
        folder : CheckpointFolder
            The job's folder.
        job : str
            Name of the job, for messages.
        summary : ComponentSummary
            The source.
        manifest : Manifest or None
            The checkpoint; None if the job has none yet.
        keep : int
            How many complete checkpoints are kept.

        Raises
        ------
        CheckpointCorrupt
            If a record is missing or damaged.
        """
        spool = EpochSpool(folder, summary.name)
        place = f"job {job!r}, source {summary.name!r}"
        positions = QueryPositions(place, summary.accepts_resets)
        ledger = EpochLedger(summary.instances or 1, positions=positions, durable=True)
        snapshot, covered = in_checkpoint(manifest, summary.name)
        records = spool.records()
        needed = {*_needed(snapshot, covered)}
        if records and records[0].number > snapshot.count + 1:
            needed.add(snapshot.count + 1)
        if lost := needed - {record.number for record in records}:
            where = f"{folder.shown}: the ledger of source {summary.name!r}"
            raise CheckpointCorrupt(where, f"record {min(lost)}", "no such record")
        spool.drop_uncommitted(records)
        ledger.restore(snapshot, records, covered.reached)
        if spool.ended:
            ledger.close()
        return cls(ledger, spool, keep)

    def cover(self, covered: Covered) -> None:
        """Take note of a complete checkpoint: its rows need not be read again by a later generation."""
        self._covered.append(covered)
        self.ledger.cover(covered.reached)

    def accepted(self, manifest: Manifest, source: str, later: bool) -> list[FileRef | str]:
        """Return the files of committed epochs that a copy of a checkpoint needs; may block.

        Parameters
        ----------
        manifest : Manifest
            The checkpoint, which no sweep deletes meanwhile.
        source : str
            The source.
        later : bool
            Whether epochs are included that were committed after the checkpoint.

        Raises
        ------
        CheckpointCorrupt
            If a record is missing or damaged.
        """
        snapshot, covered = in_checkpoint(manifest, source)
        ended = self.spool.ended
        records = self.spool.records()
        behind = [record for record in records if record.number > snapshot.count]
        wanted = records if later else records[: len(records) - len(behind)]
        files = self.spool.files(itertools.dropwhile(covered.contains, wanted))
        return [*files, self.spool.end_path] if ended and (later or not behind) else files

    def sweep(self) -> None:
        """Delete from storage what all checkpoints that are kept contain; may block."""
        if len(self._covered) == self._keep:
            self.spool.sweep(self._covered[0])


def open_ledgers(folder: CheckpointFolder, call: Submit) -> dict[str, SpooledLedger]:
    """Open the ledgers of all sources of a job that spool their epochs; may block.

    Parameters
    ----------
    folder : CheckpointFolder
        The job's folder.
    call : Submit
        The job.

    Returns
    -------
    dict of str to SpooledLedger
        The ledgers by source.

    Raises
    ------
    CheckpointCorrupt
        If a record is missing or damaged.
    SubmitError
        If the folder has epochs for a source that the job lacks.
    """
    spooled = {summary.name: summary for summary in call.summaries if summary.spooled and summary.epochs}
    manifest = None if call.resume is None else Catalog(folder).load(call.resume)
    lost = [name for name in EpochSpool.sources(folder) if name not in spooled] if manifest is None else []
    if lost:
        raise SubmitError(
            f"checkpoint={folder.shown!r}: the folder has rows of Spark for the source {lost[0]!r} of an earlier run, "
            "which the topology lacks. Name the source so, or give this run another folder."
        )
    keep = call.options.checkpoint_keep
    return {name: SpooledLedger.load(folder, call.name, summary, manifest, keep) for name, summary in spooled.items()}


def snapshots_of(ledgers: Mapping[str, SpooledLedger]) -> dict[str, LedgerSnapshot]:
    """Return what a checkpoint keeps of all ledgers of a job, as they are now."""
    return {name: each.ledger.snapshot() for name, each in ledgers.items()}


def with_ledgers(manifest: Manifest, snapshots: Mapping[str, LedgerSnapshot]) -> tuple[Manifest, dict[str, Covered]]:
    """Add the ledgers of a job to the manifest of a checkpoint; may block: they have records of thousands of queries.

    Parameters
    ----------
    manifest : Manifest
        The manifest, with the positions of the sources.
    snapshots : mapping of str to LedgerSnapshot
        By source, what `snapshots_of` returned when the manifest was made.

    Returns
    -------
    tuple of Manifest and dict of str to Covered
        The manifest, and by source what the checkpoint covers.

    Raises
    ------
    CheckpointError
        If a ledger cannot be pickled, or a position cannot be loaded.
    """
    covered = {name: _covered(manifest, name, snapshot.count) for name, snapshot in snapshots.items()}
    pickled = {name: Pickled.of(snapshot.slim()) for name, snapshot in snapshots.items()}
    return replace(manifest, ledgers=pickled), covered


def in_checkpoint(manifest: Manifest | None, source: str) -> tuple[LedgerSnapshot, Covered]:
    """Return the ledger in a checkpoint, and how far the instances of the source had come; may block, as it is loaded.

    Parameters
    ----------
    manifest : Manifest or None
        The checkpoint; None if the job has none yet.
    source : str
        The source.

    Returns
    -------
    tuple of LedgerSnapshot and Covered
        Empty ones if the checkpoint has no ledger of the source.
    """
    pickled = None if manifest is None else manifest.ledgers.get(source)
    if manifest is None or pickled is None:
        return LedgerSnapshot(), Covered()
    snapshot = pickled.load(f"the ledger of source {source!r}")
    assert isinstance(snapshot, LedgerSnapshot), f"{snapshot!r} is no ledger"
    return snapshot, _covered(manifest, source, snapshot.count)


def _covered(manifest: Manifest, source: str, count: int) -> Covered:
    """Return how far the instances of a source had come in a checkpoint, whose ledger has so many records."""
    positions = manifest.positions.get(source, ())
    return Covered(count, tuple(_reached(position, source) for position in positions))


def _needed(snapshot: LedgerSnapshot, covered: Covered) -> Iterator[int]:
    """Yield the numbers of the records in a checkpoint's ledger that its instances had not read."""
    for reached, numbers in zip(covered.reached, snapshot.waiting, strict=False):
        if reached is not None:
            yield from (number for number in numbers if number > reached)


def _reached(pickled: Pickled | None, source: str) -> int | None:
    """Return the record up to which the position of an instance includes all rows; None if it has read everything."""
    if pickled is None:
        return 0
    position = pickled.load(f"the position of source {source!r}")
    assert isinstance(position, SourcePosition), f"{position!r} is no position of a source"
    if position.ended:
        return None
    if position.offset is None:
        return 0
    assert isinstance(position.offset, tuple), f"{position.offset!r} is no offset of a source for Spark"
    return int(position.offset[0])
