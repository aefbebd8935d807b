"""The rows of operators, by whatever class a user has them: where they come from, and the ends to which they go."""

from __future__ import annotations

from typing import NoReturn

from dask_elastic.topology import validation
from dask_elastic.topology.graph import OperatorGraph, check_same
from dask_elastic.topology.operators import SinkOperator
from dask_elastic.topology.sink import Sink
from dask_elastic.vocab.errors import TopologyError


class ProducedRows:
    """The rows of one operator, or of several in a union.

    Parameters
    ----------
    topology : OperatorGraph
        The topology of the operators.
    producers : tuple of str
        The names of the operators.
    """

    def __init__(self, topology: OperatorGraph, producers: tuple[str, ...]):
        self._topology = topology
        self._producers = producers

    @property
    def topology(self) -> OperatorGraph:
        """The topology that the stream is part of."""
        return self._topology

    @property
    def producers(self) -> tuple[str, ...]:
        """The names of the operators whose output this is: one, or several for a union."""
        return self._producers

    def _label(self) -> str:
        return " + ".join(map(repr, self._producers))


class OperatorOutput(ProducedRows):
    """The rows of one operator, or of several in a union, with the methods that end a stream; the base of `Stream`.

    Parameters
    ----------
    topology : OperatorGraph
        The topology of the operators.
    producers : tuple of str
        The names of the operators.
    """

    def feed(self, operator: OperatorOutput) -> None:
        """Make this stream an additional input of an existing operator.

        Parameters
        ----------
        operator : Stream
            The output of that operator.

        Raises
        ------
        TopologyError
            When `operator` is a source, a union, or part of another topology, or already reads this stream.
            `Topology.validate` refuses cycles.

        Examples
        --------
        >>> from dask_elastic.topology import Source, Topology
        >>> class Flights(Source):
        ...     def read(self, context):
        ...         yield from ()
        >>> topology = Topology("delays")
        >>> late = topology.source("east", Flights()).map(lambda batch: batch, name="late")
        >>> topology.source("west", Flights()).feed(late)
        >>> [operator.name for operator in topology.inputs("late")]
        ['east', 'west']
        """
        target = self._checked(operator, "feed")
        if len(target.producers) != 1:
            raise TopologyError(
                f"stream of {self._label()}: feed goes to one operator, but was given the union {target!r}; feed each "
                "of its operators."
            )
        self._topology.connect(self._producers, target.producers[0])

    def sink(self, sink: Sink, *, name: str | None = None) -> None:
        """Send all rows of the stream to a sink.

        Parameters
        ----------
        sink : Sink
            Where the rows go, such as `sinks.Parquet("out")`.
        name : str, optional
            The operator's name; `sink-1` and so on by default.

        Raises
        ------
        TopologyError
            When `sink` is not a `Sink`, or the name is taken.

        Examples
        --------
        >>> from dask_elastic.topology import Sink, Source, Topology
        >>> class Flights(Source):
        ...     def read(self, context):
        ...         yield from ()
        >>> class Nowhere(Sink):
        ...     def open(self, context): ...
        >>> topology = Topology("delays")
        >>> topology.source("flights", Flights()).sink(Nowhere(), name="out")
        >>> topology
        <Topology 'delays': 1 source, 1 sink>
        """
        validation.check_sink(sink, label_of("sink", name))
        given = self._topology.choose_name("sink", name, None)
        self._topology.add(SinkOperator(given, sink), self._producers)

    def compute(self, *_: object, **__: object) -> NoReturn:
        """Refuse: state is kept per key, so `key_by` must come first.

        Raises
        ------
        TopologyError
            Always.
        """
        raise TopologyError(
            f"stream of {self._label()}: compute keeps state per key and needs key columns; "
            "write stream.key_by('column').compute(...)."
        )

    def join(self, *_: object, **__: object) -> NoReturn:
        """Refuse: rows match by their keys, so `key_by` must come first.

        Raises
        ------
        TopologyError
            Always.
        """
        raise TopologyError(
            f"stream of {self._label()}: join and join_asof match rows by key; "
            "write stream.key_by('column').join(other.key_by('column'), ...)."
        )

    join_asof = join

    def _checked(self, other: object, method: str) -> OperatorOutput:
        where = f"stream of {self._label()}: {method}"
        if isinstance(other, KeyedOutput):
            raise TopologyError(f"{where} was given {other!r}; {method} takes streams before their key_by.")
        if not isinstance(other, OperatorOutput):
            raise TopologyError(f"{where} was given {other!r}, of type {type(other).__name__}; give a Stream.")
        check_same(self._topology, other.topology, where)
        return other


class KeyedOutput(ProducedRows):
    """The rows of operators and the columns by which the next operator keeps its state; the base of `KeyedStream`.

    Parameters
    ----------
    topology : OperatorGraph
        The topology of the operators.
    producers : tuple of str
        The names of the operators.
    keys : tuple of str
        The key columns.
    key_by : int
        The number of the `key_by`, as `OperatorGraph.note_key_by` returned it.
    """

    def __init__(self, topology: OperatorGraph, producers: tuple[str, ...], keys: tuple[str, ...], key_by: int):
        super().__init__(topology, producers)
        self._keys = keys
        self._key_by = key_by

    @property
    def keys(self) -> tuple[str, ...]:
        """The key columns."""
        return self._keys

    @property
    def key_by_number(self) -> int:
        """The number of the `key_by`."""
        return self._key_by

    def sink(self, *_: object, **__: object) -> NoReturn:
        """Refuse: keyed rows go into a `compute` or a join.

        Raises
        ------
        TopologyError
            Always.

        Examples
        --------
        >>> from dask_elastic.topology import Source, Topology
        >>> class Flights(Source):
        ...     def read(self, context):
        ...         yield from ()
        >>> Topology("delays").source("flights", Flights()).key_by("plane").map(lambda rows: rows)
        Traceback (most recent call last):
            ...
        dask_elastic.vocab.errors.TopologyError: keyed stream of 'flights': map, filter, key_by, union and sink ...
        """
        raise TopologyError(
            f"keyed stream of {self._label()}: map, filter, key_by, union and sink belong to streams without keys; "
            "call them before key_by, or on the stream that compute(...) returns."
        )

    map = filter = key_by = union = sink


def label_of(kind: str, name: object) -> str:
    """Return how errors call a new operator, whose name may be missing."""
    return kind if name is None else f"{kind} {name!r}"
