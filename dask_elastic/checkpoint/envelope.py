"""The first line of small files in a checkpoint's folder: what they are, their format, and a checksum of the rest."""

from __future__ import annotations

from dask_elastic.checkpoint.file_ref import checksum
from dask_elastic.vocab.errors import CheckpointCorrupt, CheckpointError


def enveloped(mark: str, version: int, body: bytes) -> bytes:
    """Return the contents of a file.

    Parameters
    ----------
    mark : str
        What the file is, such as "dask_elastic checkpoint format".
    version : int
        The version of its format.
    body : bytes
        The contents behind the first line.

    Returns
    -------
    bytes
        The first line and the body.

    Examples
    --------
    >>> enveloped("notes format", 1, b"{}").splitlines()
    [b'notes format 1 crc32:...', b'{}']
    >>> opened("notes format", 1, enveloped("notes format", 1, b"{}"), "notes.json")
    b'{}'
    """
    return f"{mark} {_described(version, body)}\n".encode() + body


def opened(mark: str, version: int, contents: bytes, where: str) -> bytes:
    """Return the body of a file.

    Parameters
    ----------
    mark : str
        What the file must be.
    version : int
        The newest version of its format that can be read.
    contents : bytes
        The file.
    where : str
        Its full path, for messages.

    Returns
    -------
    bytes
        The contents behind the first line.

    Raises
    ------
    CheckpointCorrupt
        When it is damaged, or another file.
    CheckpointError
        When a newer version of dask_elastic wrote it.
    """
    first, _, body = contents.partition(b"\n")
    line = first.decode(errors="replace")
    words = line.removeprefix(f"{mark} ").split()
    if not line.startswith(f"{mark} ") or len(words) != 2 or not words[0].isdecimal():
        raise CheckpointCorrupt(where, f"a first line {mark!r} with version and checksum", repr(line[:80]))
    found, wanted = int(words[0]), _described(int(words[0]), body)
    if line != f"{mark} {wanted}":
        raise CheckpointCorrupt(where, f"checksum {words[1]}", wanted.split()[-1])
    if found > version:
        raise CheckpointError(
            f"{where} has format {found}, which a newer version of dask_elastic wrote; this version reads formats up "
            f"to {version}. Upgrade dask_elastic on the client, the scheduler and all workers."
        )
    return body


def _described(version: int, body: bytes) -> str:
    return f"{version} {checksum(f'{version} '.encode() + body)}"
