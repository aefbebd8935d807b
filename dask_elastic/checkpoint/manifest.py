"""The manifest of a checkpoint: what it consists of, written when all of that is on storage."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from dask_elastic.checkpoint.chain import Chain
from dask_elastic.checkpoint.file_ref import FileRef
from dask_elastic.checkpoint.pickled import Pickled
from dask_elastic.vocab.errors import UnknownOperator


@dataclass(frozen=True)
class OperatorState:
    """The state of one stateful operator in a checkpoint.

    Parameters
    ----------
    name : str
        The operator's name.
    keys : tuple of str
        Its key columns.
    executors, shards : int
        The number of executors, y, and of the shards of each, z. Their product never changes for the state.
    chains : tuple of Chain
        Per executor, the files of its state.
    reading : Pickled or None
        How the state is read as values: what `reading_of` returns.
    event_times : tuple of (int or None)
        Per executor, the event time up to which its timers had fired and its windows were closed, in microseconds since
        the Unix epoch; empty in manifests of earlier versions.
    routed_by : tuple of str
        The key columns that decide in which shard a key is; empty for all of them.
    owned : tuple of tuple of int
        Per executor, the key groups that it owned; empty where key groups do not move. Where they do, the shards of
        each executor are all groups of the operator.
    parted_by : int
        Where key groups move, the number of groups by which the identities of parts of a key were made; see
        `part_hashes`. 0 in manifests of earlier versions, where it depended on the number of executors.
    """

    name: str
    keys: tuple[str, ...]
    executors: int
    shards: int
    chains: tuple[Chain, ...]
    reading: Pickled | None = None
    event_times: tuple[int | None, ...] = ()
    routed_by: tuple[str, ...] = ()
    owned: tuple[tuple[int, ...], ...] = ()
    parted_by: int = 0

    @property
    def groups(self) -> int:
        """The number of all shards, G."""
        return self.executors * self.shards


@dataclass(frozen=True)
class Manifest:
    """A complete checkpoint.

    Parameters
    ----------
    job : str
        The name of the job.
    number : int
        The number of the checkpoint, from 1; never repeats within a job.
    generation : int
        The generation of the job that took it.
    started, ended : float
        When its barriers were sent, and when all parts were on storage; seconds since the epoch.
    topology : FileRef
        The pickled topology.
    kinds : mapping of str to str
        The kind of each operator of the topology, by name.
    states : tuple of OperatorState
        The stateful operators.
    positions : mapping of str to tuple
        By source, for each instance: the offset from which it continues, None at the beginning.
    ended_sources : frozenset of str
        Sources that had no more rows.
    prepared : mapping of str to tuple
        By sink, for each instance: the handle that `SinkWriter.prepare` returned, None if there is nothing to commit.
    ledgers : mapping of str to Pickled
        By source, what it needs to recognise rows that are delivered again.
    savepoint : bool
        Whether a user asked for it: it is kept until the user deletes it.
    accepted : tuple of FileRef
        In a savepoint: the files with rows that sources have accepted, and that a job which continues from it reads.

    Examples
    --------
    >>> manifest = Manifest("delays", 1, 1, 0.0, 0.5, FileRef("topology/1.pickle", 900, "crc32:0"))
    >>> manifest.nbytes, manifest.files
    (900, (FileRef(path='topology/1.pickle', nbytes=900, checksum='crc32:0', rows=0),))
    """

    job: str
    number: int
    generation: int
    started: float
    ended: float
    topology: FileRef
    kinds: Mapping[str, str] = field(default_factory=dict)
    states: tuple[OperatorState, ...] = ()
    positions: Mapping[str, tuple[Pickled | None, ...]] = field(default_factory=dict)
    ended_sources: frozenset[str] = frozenset()
    prepared: Mapping[str, tuple[Pickled | None, ...]] = field(default_factory=dict)
    ledgers: Mapping[str, Pickled] = field(default_factory=dict)
    savepoint: bool = False
    accepted: tuple[FileRef, ...] = ()

    @property
    def files(self) -> tuple[FileRef, ...]:
        """All files that the checkpoint needs."""
        return (self.topology, *self._state_files(), *self.accepted)

    @property
    def nbytes(self) -> int:
        """The bytes of all files that the checkpoint needs, those of earlier checkpoints included."""
        return sum(file.nbytes for file in self.files)

    @property
    def new_bytes(self) -> int:
        """The bytes that were written for this checkpoint alone."""
        links = (link for state in self.states for chain in state.chains for link in chain.links)
        return sum(link.file.nbytes for link in links if link.number == self.number and link.file is not None)

    def state(self, operator: str) -> OperatorState:
        """Return the state of an operator.

        Parameters
        ----------
        operator : str
            The operator's name.

        Returns
        -------
        OperatorState
            Its state.

        Raises
        ------
        UnknownOperator
            When the checkpoint has no stateful operator of that name.
        """
        for state in self.states:
            if state.name == operator:
                return state
        names = ", ".join(repr(state.name) for state in self.states) or "none"
        raise UnknownOperator(
            f"checkpoint {self.number} of job {self.job!r} has no state of an operator {operator!r}; operators with "
            f"state: {names}. Use one of these names."
        )

    def _state_files(self) -> Iterator[FileRef]:
        for state in self.states:
            for chain in state.chains:
                yield from chain.files
