"""The file of a committed epoch: a line with the format and a checksum, then JSON."""

from __future__ import annotations

import json
from typing import Any

from dask_elastic.checkpoint.envelope import enveloped, opened
from dask_elastic.vocab.epoch import AttemptId, EpochKind, EpochOrigin, EpochRecord, SpoolFile, StagedPart
from dask_elastic.vocab.errors import CheckpointCorrupt

FORMAT = 1
"""The version of the format that this version of dask_elastic writes; it reads all up to it."""

_MARK = "dask_elastic epoch format"


def to_bytes(record: EpochRecord) -> bytes:
    """Return a record as the contents of its file.

    Parameters
    ----------
    record : EpochRecord
        The record; each of its parts has a file.

    Returns
    -------
    bytes
        One line with the format and the checksum of the rest, then JSON.

    Examples
    --------
    >>> part = StagedPart(AttemptId("q", 4, 0, "a"), 0, 2, 77, SpoolFile("epochs/rows/1.arrows", 900, "crc32:0"))
    >>> contents = to_bytes(EpochRecord(1, "q", 4, 2, 77, (part,)))
    >>> from_bytes(contents, "1.json", 1).parts == (part,)
    True
    """
    body = json.dumps(_described(record), indent=1).encode()
    return enveloped(_MARK, FORMAT, body)


def from_bytes(contents: bytes, where: str, number: int) -> EpochRecord:
    """Return the record in a file.

    Parameters
    ----------
    contents : bytes
        The file.
    where : str
        Its full path, for messages.
    number : int
        The number of the record by its path.

    Returns
    -------
    EpochRecord
        The record.

    Raises
    ------
    CheckpointCorrupt
        When it is damaged, or another record.
    CheckpointError
        When a newer version of dask_elastic wrote it.
    """
    record = _loaded(json.loads(opened(_MARK, FORMAT, contents, where)))
    if record.number != number:
        raise CheckpointCorrupt(where, f"the record of number {number}", f"that of number {record.number}")
    return record


def _described(record: EpochRecord) -> dict[str, Any]:
    return {
        "number": record.number,
        "query": record.query,
        "epoch": record.epoch,
        "rows": record.rows,
        "digest": record.digest,
        "kind": record.origin.kind.value,
        "checkpoint": record.origin.checkpoint,
        "parts": [_part(part) for part in record.parts],
    }


def _part(part: StagedPart) -> dict[str, Any]:
    assert part.file is not None, "only spooled parts are written to storage"
    return {
        "partition": part.attempt.partition,
        "attempt": part.attempt.attempt,
        "instance": part.instance,
        "rows": part.rows,
        "digest": part.digest,
        **part.file._asdict(),
    }


def _loaded(found: dict[str, Any]) -> EpochRecord:
    query, epoch = found["query"], found["epoch"]
    parts = (
        StagedPart(
            AttemptId(query, epoch, part["partition"], part["attempt"]),
            part["instance"],
            part["rows"],
            part["digest"],
            SpoolFile(part["path"], part["nbytes"], part["checksum"]),
        )
        for part in found["parts"]
    )
    origin = EpochOrigin(EpochKind(found["kind"]), found["checkpoint"])
    return EpochRecord(found["number"], query, epoch, found["rows"], found["digest"], tuple(parts), origin)
