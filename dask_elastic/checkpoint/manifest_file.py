"""The text of a manifest: a line with the format and a checksum, then JSON."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from dask_elastic.checkpoint.chain import Chain, ChainLink
from dask_elastic.checkpoint.envelope import enveloped, opened
from dask_elastic.checkpoint.file_ref import FileRef
from dask_elastic.checkpoint.manifest import Manifest, OperatorState
from dask_elastic.checkpoint.pickled import Pickled
from dask_elastic.checkpoint.shard_set import from_text, to_text
from dask_elastic.vocab.errors import CheckpointCorrupt

FORMAT = 1
"""The version of the format that this version of dask_elastic writes; it reads all up to it."""

_MARK = "dask_elastic checkpoint format"


def path_of(number: int) -> str:
    """Return where the manifest of a checkpoint is written.

    Examples
    --------
    >>> path_of(17)
    'manifests/0000000017.json'
    """
    return f"manifests/{number:010d}.json"


def to_bytes(manifest: Manifest) -> bytes:
    """Return a manifest as the contents of its file.

    Parameters
    ----------
    manifest : Manifest
        The manifest; the files of all its chains are written.

    Returns
    -------
    bytes
        One line with the format and the checksum of the rest, then JSON.

    Examples
    --------
    >>> text = to_bytes(Manifest("delays", 1, 1, 0.0, 0.5, FileRef("topology/1.pickle", 900, "crc32:0")))
    >>> text.splitlines()[0].decode()
    'dask_elastic checkpoint format 1 crc32:...'
    >>> from_bytes(text, "1.json", 1).job
    'delays'
    """
    body = json.dumps(_manifest(manifest), indent=1).encode()
    return enveloped(_MARK, FORMAT, body)


def from_bytes(contents: bytes, where: str, number: int) -> Manifest:
    """Return the manifest in a file.

    Parameters
    ----------
    contents : bytes
        The file.
    where : str
        Its full path, for messages.
    number : int
        The number of the checkpoint by its path.

    Returns
    -------
    Manifest
        The manifest.

    Raises
    ------
    CheckpointCorrupt
        When it is damaged, or that of another checkpoint.
    CheckpointError
        When a newer version of dask_elastic wrote it.
    """
    loaded = _loaded(json.loads(opened(_MARK, FORMAT, contents, where)))
    if loaded.number != number:
        raise CheckpointCorrupt(where, f"the manifest of checkpoint {number}", f"that of checkpoint {loaded.number}")
    return loaded


def _manifest(manifest: Manifest) -> dict[str, Any]:
    return {
        "job": manifest.job,
        "number": manifest.number,
        "generation": manifest.generation,
        "savepoint": manifest.savepoint,
        "started": manifest.started,
        "ended": manifest.ended,
        "topology": _file(manifest.topology),
        "kinds": dict(manifest.kinds),
        "positions": _by_instance(manifest.positions),
        "ended_sources": sorted(manifest.ended_sources),
        "prepared": _by_instance(manifest.prepared),
        "ledgers": {name: _pickled(ledger) for name, ledger in manifest.ledgers.items()},
        "states": [
            {
                "name": state.name,
                "keys": list(state.keys),
                "executors": state.executors,
                "shards": state.shards,
                "reading": _pickled(state.reading),
                "chains": [_chain(chain) for chain in state.chains],
                "event_times": list(state.event_times),
                "routed_by": list(state.routed_by),
                "owned": [to_text(groups) for groups in state.owned],
                "parted_by": state.parted_by,
            }
            for state in manifest.states
        ],
        "accepted": [_file(file) for file in manifest.accepted],
    }


def _loaded(described: dict[str, Any]) -> Manifest:
    return Manifest(
        described["job"],
        described["number"],
        described["generation"],
        described["started"],
        described["ended"],
        FileRef(**described["topology"]),
        described["kinds"],
        tuple(
            OperatorState(
                state["name"],
                tuple(state["keys"]),
                state["executors"],
                state["shards"],
                tuple(_loaded_chain(chain) for chain in state["chains"]),
                _unpickled(state["reading"]),
                # Manifests of earlier versions lack these.
                tuple(state.get("event_times", ())),
                tuple(state.get("routed_by", ())),
                tuple(tuple(sorted(from_text(groups))) for groups in state.get("owned", ())),
                state.get("parted_by", 0),
            )
            for state in described["states"]
        ),
        _loaded_by_instance(described["positions"]),
        frozenset(described["ended_sources"]),
        _loaded_by_instance(described["prepared"]),
        {name: Pickled(**_bytes(ledger)) for name, ledger in described["ledgers"].items()},
        described["savepoint"],
        # Manifests of earlier versions lack it.
        tuple(FileRef(**file) for file in described.get("accepted", ())),
    )


def _file(file: FileRef) -> dict[str, Any]:
    return {"path": file.path, "nbytes": file.nbytes, "checksum": file.checksum, "rows": file.rows}


def _pickled(value: Pickled | None) -> dict[str, str] | None:
    if value is None:
        return None
    return {"data": base64.b64encode(value.data).decode(), "kind": value.kind, "versions": value.versions}


def _unpickled(described: dict[str, str] | None) -> Pickled | None:
    return None if described is None else Pickled(**_bytes(described))


def _bytes(described: dict[str, str]) -> dict[str, Any]:
    return {**described, "data": base64.b64decode(described["data"])}


def _by_instance(values: Mapping[str, tuple[Pickled | None, ...]]) -> dict[str, list[dict[str, str] | None]]:
    return {name: [_pickled(value) for value in instances] for name, instances in values.items()}


def _loaded_by_instance(described: dict[str, list[dict[str, str] | None]]) -> dict[str, tuple[Pickled | None, ...]]:
    return {name: tuple(_unpickled(value) for value in instances) for name, instances in described.items()}


def _chain(chain: Chain) -> dict[str, Any]:
    return {"shards": chain.shards, "most": chain.most, "links": [_link(link) for link in chain.links]}


def _link(link: ChainLink) -> dict[str, Any]:
    if link.file is None:
        raise ValueError(f"the file of cut {link.number} is not written; take Chain.at for a manifest")
    contents = zlib.compress(np.array(link.contents, "<i4").tobytes())
    return {"number": link.number, "contents": base64.b64encode(contents).decode(), "file": _file(link.file)}


def _loaded_chain(described: dict[str, Any]) -> Chain:
    links = tuple(
        ChainLink(
            link["number"],
            tuple(np.frombuffer(zlib.decompress(base64.b64decode(link["contents"])), "<i4").tolist()),
            FileRef(**link["file"]),
        )
        for link in described["links"]
    )
    return Chain(described["shards"], links, described["most"])
