"""Files with rows that sources have accepted and not processed, on their way through a savepoint.

A savepoint has them at the paths of the job's folder. The spool of a source belongs to a run of its job, so a job that
continues from the savepoint has them under its own run.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from urllib.parse import unquote

from dask_elastic.checkpoint.file_ref import FileRef
from dask_elastic.checkpoint.folder import CheckpointFolder
from dask_elastic.checkpoint.spool.log import SpoolLog, path_of


def spooled_files(
    folder: CheckpointFolder, run: str, source: str, offsets: Mapping[int, int], generation: int
) -> list[str]:
    """Return the files of a source's spool that a job needs which continues behind some offsets.

    Parameters
    ----------
    folder : CheckpointFolder
        The job's folder.
    run : str
        The job's run.
    source : str
        The source.
    offsets : mapping of int to int
        The offset of each instance that has not ended.
    generation : int
        The newest generation whose entries count. It appends nothing meanwhile.

    Raises
    ------
    CheckpointCorrupt
        If entries behind an offset are damaged or missing.
    CheckpointError
        If the storage fails.
    """
    found: list[str] = []
    for instance, offset in offsets.items():
        found += SpoolLog(folder, path_of(run, source, instance), generation + 1).files(offset)
    return found


def continued(files: Iterable[FileRef], run: str, sources: Collection[str]) -> Iterator[tuple[FileRef, str]]:
    """Yield the files of a savepoint that a job needs which continues from it, each with its path there.

    Parameters
    ----------
    files : iterable of FileRef
        The accepted files of the savepoint.
    run : str
        The run that continues.
    sources : collection of str
        The sources of the job; what others had accepted is left out.

    Examples
    --------
    >>> files = [FileRef("spool/5f2c/orders%2Feu/0/1.spool", 9, "crc32:0"), FileRef("epochs/old/ended", 0, "crc32:0")]
    >>> [path for _, path in continued(files, "second", ["orders/eu"])]
    ['spool/second/orders%2Feu/0/1.spool']
    """
    for file in files:
        kind, *parts = file.path.split("/")
        if kind == "spool":
            _, source, instance, name = parts
            path = f"{path_of(run, unquote(source), int(instance))}/{name}"
        else:
            source, path = parts[0], file.path
        if unquote(source) in sources:
            yield file, path


def copy_accepted(source: CheckpointFolder, file: FileRef | str, target: CheckpointFolder, path: str) -> FileRef:
    """Copy a file with accepted rows, and return what refers to the copy.

    Parameters
    ----------
    source : CheckpointFolder
        Where it is.
    file : FileRef or str
        The file; the path of one that carries checksums of its own.
    target : CheckpointFolder
        Where the copy is. A file that an interrupted copy has left there is replaced: the original may have grown.
    path : str
        The path of the copy.

    Raises
    ------
    CheckpointError
        If the file cannot be read or written.
    """
    contents = source.read(file) if isinstance(file, FileRef) else source.read_unchecked(file)
    target.delete(path)
    return target.write(path, [contents])
