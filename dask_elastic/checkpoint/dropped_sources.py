"""What sources that a job has dropped leave in its folder: rows that they had accepted."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from urllib.parse import unquote

from dask_elastic.checkpoint.catalog import Catalog
from dask_elastic.checkpoint.epoch_spool import FOLDER as EPOCHS
from dask_elastic.checkpoint.epoch_spool import EpochSpool
from dask_elastic.checkpoint.folder import CheckpointFolder
from dask_elastic.checkpoint.generations import newest_generation
from dask_elastic.checkpoint.manifest import Manifest
from dask_elastic.checkpoint.spool.log import path_of
from dask_elastic.checkpoint.spool.segment import SegmentName
from dask_elastic.vocab.errors import SubmitError

_SPOOL = "spool"


def forget_namesakes(catalog: Catalog, manifest: Manifest, run: str, sources: Iterable[str]) -> None:
    """Delete what a dropped source has accepted if another one has its name now; called when a job is resumed.

    Rows that the new source has accepted since the checkpoint stay: the job may have been resumed before.

    Parameters
    ----------
    catalog : Catalog
        The job's checkpoints.
    manifest : Manifest
        The checkpoint from which the job continues.
    run : str
        The run of the job.
    sources : iterable of str
        The sources that write what they accept to the folder.

    Raises
    ------
    SubmitError
        If epochs of Spark have such a name, and a checkpoint that is kept may need them.
    CheckpointError
        If the storage fails.
    """
    folder = catalog.folder
    new = [name for name in sources if name not in manifest.kinds]
    epochs = set(EpochSpool.sources(folder)).intersection(new) if new else set()
    for name in sorted(epochs):
        # Records do not say in which generation they were written.
        if any(name in earlier.kinds for earlier in catalog.complete()):
            raise SubmitError(
                f"{folder.shown} still has epochs of Spark of the source {name!r} that was dropped. Give the new "
                "source another name, or resume with it when no checkpoint that is kept has the old one"
            )
    for name in new:
        for path in _segments(folder, path_of(run, name, 0).rpartition("/")[0]):
            segment = SegmentName.of(path.rpartition("/")[2])
            if segment is not None and segment.generation <= manifest.generation:
                folder.delete(path)


def files_of_dropped(folder: CheckpointFolder, kept: Iterable[Manifest], running: Collection[str]) -> list[str]:
    """Return the files of sources that neither a checkpoint that is kept nor the running job has.

    Parameters
    ----------
    folder : CheckpointFolder
        The job's folder.
    kept : iterable of Manifest
        The checkpoints that are kept.
    running : collection of str
        The components of the job.

    Returns
    -------
    list of str
        Paths in the folder; none once a generation has begun that is later than these checkpoints.
    """
    manifests = list(kept)
    known = {*running, *(name for manifest in manifests for name in manifest.kinds)}
    found: list[str] = []
    for run in folder.folders(_SPOOL):
        for source in folder.folders(f"{_SPOOL}/{run}"):
            if unquote(source) not in known:
                found += _segments(folder, f"{_SPOOL}/{run}/{source}")
    for source in folder.folders(EPOCHS):
        if unquote(source) not in known:
            for place in (f"{EPOCHS}/{source}{part}" for part in ("/ledger", "/rows", "")):
                found += (f"{place}/{name}" for name in folder.sizes(place))
    # After the files were listed: a later generation may have sources that are unknown here, and writes down its number
    # before they accept anything.
    is_newest = newest_generation(folder) <= max((manifest.generation for manifest in manifests), default=0)
    return found if is_newest else []


def _segments(folder: CheckpointFolder, source: str) -> Iterator[str]:
    for instance in folder.folders(source):
        yield from (f"{source}/{instance}/{name}" for name in folder.sizes(f"{source}/{instance}"))
