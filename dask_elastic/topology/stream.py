"""The streams of a topology: what operators are added to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import pyarrow as pa
import pyarrow.compute as pc

from dask_elastic.topology import validation
from dask_elastic.topology.operators import Compute, Filter, Map, SinkOperator
from dask_elastic.topology.sink import Sink
from dask_elastic.topology.state_kind import Declared
from dask_elastic.vocab.errors import TopologyError

if TYPE_CHECKING:
    from dask_elastic.topology.aggregates.aggregation import Aggregate
    from dask_elastic.topology.topology import Topology


class Stream:
    """The rows that one operator puts out, or several in a union; made by a `Topology`, never by hand.

    Each method adds an operator that reads this stream. Several may read the same one; each gets all of its rows.
    """

    def __init__(self, topology: Topology, producers: tuple[str, ...]):
        self._topology = topology
        self._producers = producers

    @property
    def topology(self) -> Topology:
        """The topology that the stream is part of."""
        return self._topology

    @property
    def producers(self) -> tuple[str, ...]:
        """The names of the operators whose output this is: one, or several for a union."""
        return self._producers

    def __repr__(self) -> str:
        return f"Stream({' + '.join(map(repr, self._producers))} of topology {self._topology.name!r})"

    def map(
        self,
        function: Callable[[pa.RecordBatch], Any],
        *,
        columns: Sequence[str] | None = None,
        name: str | None = None,
    ) -> Stream:
        """Turn each batch into another, into several, or into none.

        Parameters
        ----------
        function : callable
            Takes a RecordBatch; returns a RecordBatch, a Table, an iterable of these, or None.
        columns : sequence of str, optional
            The columns that the function reads: it gets just these, and sources read no others. All by default.
        name : str, optional
            The operator's name; by default that of the function.

        Returns
        -------
        Stream
            The function's output.

        Raises
        ------
        TopologyError
            When the function cannot be called with a batch, or the name is taken.
        """
        where = _where("map", name)
        validation.check_function(function, where, "batch")
        read = validation.check_columns(columns, where)
        given = self._topology.choose_name("map", name, function)
        return self._topology.add(Map(given, function, read), self._producers)

    def filter(
        self,
        predicate: Callable[[pa.RecordBatch], Any] | pc.Expression,
        *,
        columns: Sequence[str] | None = None,
        name: str | None = None,
    ) -> Stream:
        """Keep the rows for which a predicate holds.

        Parameters
        ----------
        predicate : callable or pyarrow.compute.Expression
            Takes a RecordBatch and returns one boolean a row; or an expression such as `pc.field("delay") > 15`.
            Null counts as false.
        columns : sequence of str, optional
            The columns that the predicate reads. All by default.
        name : str, optional
            The operator's name; by default that of the function.

        Returns
        -------
        Stream
            The rows kept, in order.

        Raises
        ------
        TopologyError
            When the predicate is neither function nor expression, or the name is taken.
        """
        where = _where("filter", name)
        validation.check_predicate(predicate, where)
        read = validation.check_columns(columns, where)
        given = self._topology.choose_name("filter", name, predicate)
        return self._topology.add(Filter(given, predicate, read), self._producers)

    def key_by(self, *columns: str) -> KeyedStream:
        """Say by which columns the next operator keeps its state.

        Parameters
        ----------
        *columns : str
            The key columns. Rows that are equal in all of them meet the same state, in the order in which they came.

        Returns
        -------
        KeyedStream
            What `compute` is called on.

        Raises
        ------
        TopologyError
            When there are no columns, or they are not different names.
        """
        keys = validation.check_keys(columns, f"stream of {self._label()}")
        return KeyedStream(self._topology, self._producers, keys)

    def union(self, *others: Stream) -> Stream:
        """Put the rows of several streams together; rows of one stream keep their order.

        Parameters
        ----------
        *others : Stream
            Other streams of the same topology, with the same columns.

        Returns
        -------
        Stream
            All rows.

        Raises
        ------
        TopologyError
            When a stream is of another topology, is keyed already, or is there twice.
        """
        if not others:
            raise TopologyError(f"stream of {self._label()}: union got no other stream; give one at least.")
        producers = list(self._producers)
        for other in others:
            for producer in self._checked(other, "union").producers:
                if producer in producers:
                    raise TopologyError(
                        f"stream of {self._label()}: union has the stream of {producer!r} twice, which would count "
                        "its rows twice; name it once."
                    )
                producers.append(producer)
        return Stream(self._topology, tuple(producers))

    def feed(self, operator: Stream) -> None:
        """Make this stream one more input of an operator that is there already.

        Parameters
        ----------
        operator : Stream
            The output of that operator.

        Raises
        ------
        TopologyError
            When the operator is a source, is of another topology, has this input already, or is not one but a union.
            A cycle is refused by `Topology.validate`.
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
            Where they go, as `sinks.Parquet("out")`.
        name : str, optional
            The operator's name; `sink-1` and so on by default.

        Raises
        ------
        TopologyError
            When it is no sink, or the name is taken.
        """
        validation.check_sink(sink, _where("sink", name))
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
            f"stream of {self._label()}: compute keeps state per key and needs to know the keys; "
            "write stream.key_by('column').compute(...)."
        )

    def _label(self) -> str:
        return " + ".join(map(repr, self._producers))

    def _checked(self, other: object, method: str) -> Stream:
        where = f"stream of {self._label()}: {method}"
        if isinstance(other, KeyedStream):
            raise TopologyError(f"{where} was given {other!r}; {method} takes streams before their key_by.")
        if not isinstance(other, Stream):
            raise TopologyError(f"{where} was given {other!r}, of type {type(other).__name__}; give a Stream.")
        if other.topology is not self._topology:
            raise TopologyError(
                f"{where} was given a stream of topology {other.topology.name!r}, but this is topology "
                f"{self._topology.name!r}; read both from one topology."
            )
        return other


class KeyedStream:
    """A stream and the columns by which the operator behind it keeps its state; made by `Stream.key_by`."""

    def __init__(self, topology: Topology, producers: tuple[str, ...], keys: tuple[str, ...]):
        self._topology = topology
        self._producers = producers
        self._keys = keys
        self._ticket = topology.note_key_by(producers, keys)

    @property
    def keys(self) -> tuple[str, ...]:
        """The key columns."""
        return self._keys

    def __repr__(self) -> str:
        producers = " + ".join(map(repr, self._producers))
        keys = ", ".join(map(repr, self._keys))
        return f"KeyedStream({producers} by {keys} of topology {self._topology.name!r})"

    def compute(
        self,
        logic: Mapping[str, Aggregate] | Callable[[pa.RecordBatch, Any], Any],
        *,
        name: str | None = None,
        state: Mapping[str, Declared] | None = None,
        executors: int | None = None,
        shards: int = 256,
    ) -> Stream:
        """Keep state for each key.

        Parameters
        ----------
        logic : mapping of str to Aggregate, or callable
            Aggregates by output column: for each batch the new values of the keys that it touched are put out. Or a
            function of a batch and the state of its keys; what it returns is put out, as with `map`. Or a function that
            is called for less than a batch, decorated with `per_row` or `per_key`.
        name : str, optional
            The operator's name, under which the job gives its state; by default the function's, or `compute-1`.
        state : mapping of str to type, optional
            What a function keeps per key: an Arrow type for a value, `object` for any Python object, or a `Value`,
            `List` or `Map`, which may have a time to live.
        executors : int, optional
            Into how many executors the key space is cut, each on as many cores as its load wants.
        shards : int
            Into how many shards each executor's keys are cut; a shard is what moves between cores.

        Returns
        -------
        Stream
            Key columns and aggregates, or what the function returns.

        Raises
        ------
        TopologyError
            When logic, state or an option cannot be used, or the name is taken.

        Examples
        --------
        >>> from dask_elastic.topology import Source, Topology
        >>> class Flights(Source):
        ...     def read(self, context):
        ...         yield from ()
        >>> def longest(batch, state):
        ...     state.set("longest", ...)
        >>> flights = Topology("delays").source("flights", Flights())
        >>> flights.key_by("plane").compute(longest, state={"longest": pa.float64()})
        Stream('longest' of topology 'delays')
        """
        where = _where("compute", name)
        checked = validation.check_logic(logic, self._keys, where)
        declared = validation.check_state(state, checked, self._keys, where)
        if executors is not None:
            validation.check_count(executors, where, "executors")
        validation.check_count(shards, where, "shards", validation.MOST_SHARDS)
        given = self._topology.choose_name("compute", name, logic)
        operator = Compute(given, self._keys, checked, declared, executors, shards)
        return self._topology.add(operator, self._producers, self._ticket)


def _where(kind: str, name: object) -> str:
    return kind if name is None else f"{kind} {name!r}"
