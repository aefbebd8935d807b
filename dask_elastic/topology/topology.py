"""A topology: the operators of a job and how rows flow between them, as a value."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import chain, count
from typing import Any

import cloudpickle

from dask_elastic.topology import drawing, validation
from dask_elastic.topology.operators import Compute, Filter, Map, Operator, SinkOperator, SourceOperator
from dask_elastic.topology.source import Source
from dask_elastic.topology.stream import Stream
from dask_elastic.vocab.errors import SubmitError, TopologyError, UnknownOperator


class Topology:
    """What a job does: sources, operators and sinks, and the streams between them.

    A topology is a value. It can be printed, drawn, validated, pickled and submitted more than once; nothing runs
    before it is submitted.

    Parameters
    ----------
    name : str
        A name for the topology; jobs are called after it.

    Raises
    ------
    TopologyError
        When the name is none.

    Examples
    --------
    >>> import pyarrow.compute as pc
    >>> from dask_elastic.topology import Sink, Source
    >>> class Flights(Source):
    ...     def read(self, context):
    ...         yield from ()
    >>> class Nowhere(Sink):
    ...     def open(self, context): ...
    >>> topology = Topology("late-flights")
    >>> flights = topology.source("flights", Flights())
    >>> flights.filter(pc.field("delay") > 15, name="late").sink(Nowhere(), name="out")
    >>> topology.validate()
    >>> print(topology)
    Topology 'late-flights': 3 operators
      flights  source  Flights
      late     filter  delay > 15   <- flights
      out      sink    Nowhere      <- late
    """

    def __init__(self, name: str):
        self._name = validation.check_name(name, "topology")
        self._operators: dict[str, Operator] = {}
        self._inputs: dict[str, list[str]] = {}
        self._consumers: dict[str, list[str]] = {}
        self._key_bys: list[tuple[tuple[str, ...], tuple[str, ...]]] = []
        self._key_bys_used: set[int] = set()

    @property
    def name(self) -> str:
        """The name of the topology."""
        return self._name

    @property
    def operators(self) -> tuple[Operator, ...]:
        """All operators, in the order in which they were added."""
        return tuple(self._operators.values())

    @property
    def edges(self) -> tuple[tuple[str, str], ...]:
        """All pairs of operator names between which rows flow, as (producer, consumer)."""
        return tuple((producer, name) for name, producers in self._inputs.items() for producer in producers)

    def source(self, name: str, source: Source) -> Stream:
        """Add a source.

        Parameters
        ----------
        name : str
            The operator's name.
        source : Source
            Where rows come from, as `sources.Parquet("flights.parquet")`.

        Returns
        -------
        Stream
            The source's rows.

        Raises
        ------
        TopologyError
            When it is no source, or the name is taken.
        """
        validation.check_name(name, "source")
        checked = validation.check_source(source, name)
        return self.add(SourceOperator(self.choose_name("source", name, None), checked), ())

    def operator(self, name: str) -> Operator:
        """Return the operator of a name.

        Parameters
        ----------
        name : str
            The operator's name.

        Returns
        -------
        Operator
            The operator.

        Raises
        ------
        UnknownOperator
            When there is none of that name.
        """
        try:
            return self._operators[name]
        except KeyError:
            known = ", ".join(self._operators) or "none"
            raise UnknownOperator(f"topology {self._name!r} has no operator {name!r}; it has: {known}.") from None

    def inputs(self, name: str) -> tuple[Operator, ...]:
        """Return the operators whose rows an operator reads.

        Parameters
        ----------
        name : str
            The operator's name.

        Returns
        -------
        tuple of Operator
            Its producers, in the order in which they were connected.
        """
        self.operator(name)
        return tuple(self._operators[producer] for producer in self._inputs[name])

    def consumers(self, name: str) -> tuple[Operator, ...]:
        """Return the operators that read an operator's rows.

        Parameters
        ----------
        name : str
            The operator's name.

        Returns
        -------
        tuple of Operator
            Its consumers, in the order in which they were connected.
        """
        self.operator(name)
        return tuple(self._operators[consumer] for consumer in self._consumers[name])

    def in_order(self) -> tuple[Operator, ...]:
        """Return all operators, each behind all of its inputs.

        Returns
        -------
        tuple of Operator
            In topological order; else in the order in which they were added.

        Raises
        ------
        TopologyError
            When there is a cycle; it is named as a path.
        """
        missing = {name: len(producers) for name, producers in self._inputs.items()}
        ready = [name for name, count in missing.items() if not count]
        for name in ready:
            for consumer in self._consumers[name]:
                missing[consumer] -= 1
                if not missing[consumer]:
                    ready.append(consumer)
        if len(ready) < len(self._operators):
            path = " -> ".join(self._cycle([name for name in missing if missing[name]]))
            raise TopologyError(f"topology {self._name!r} has a cycle, {path}; rows cannot be fed back, break it up.")
        return tuple(self._operators[name] for name in ready)

    def validate(self) -> None:
        """Check the topology as a whole; each operator was checked when it was added.

        Raises
        ------
        TopologyError
            When there is a cycle or no source, or when rows lead nowhere: behind a source, a map, a filter or a
            `key_by`.
        """
        if not any(isinstance(operator, SourceOperator) for operator in self.operators):
            raise TopologyError(f"topology {self._name!r} has no source; begin with topology.source(name, source).")
        self.in_order()
        # Keying the same rows again after a compute that was refused leaves nothing undone.
        used = {self._key_bys[position] for position in self._key_bys_used}
        for producers, keys in self._key_bys:
            if (producers, keys) not in used:
                call = ", ".join(map(repr, keys))
                raise TopologyError(
                    f"topology {self._name!r}: key_by({call}) of {' + '.join(map(repr, producers))} is not used; add "
                    ".compute(...) behind it, or take it away."
                )
        for operator in self.operators:
            if isinstance(operator, SourceOperator | Map | Filter) and not self._consumers[operator.name]:
                raise TopologyError(
                    f"topology {self._name!r}: nothing reads {operator.kind} {operator.name!r}; add .sink(...) or "
                    ".key_by(...).compute(...) behind it, or take it away."
                )

    def choose_name(self, kind: str, given: object, function: object) -> str:
        """Return the name for a new operator: the one given, or one derived from its function or kind.

        Parameters
        ----------
        kind : str
            The kind of operator.
        given : str or None
            The name that the user gave.
        function : object
            The operator's function, if it has one.

        Returns
        -------
        str
            A name that no other operator has.

        Raises
        ------
        TopologyError
            When the name given is taken, or is none.
        """
        if given is not None:
            name = validation.check_name(given, kind)
            taken = self._operators.get(name)
            if taken is not None:
                position = [*self._operators].index(name) + 1
                raise TopologyError(
                    f"topology {self._name!r} has two operators named {name!r}: {taken.kind} {name!r}, operator number "
                    f"{position}, and the new {kind} {name!r}; rename one with name=."
                )
            return name
        derived = getattr(function, "__name__", None)
        if isinstance(derived, str) and derived.isidentifier():
            candidates = chain([derived], (f"{derived}-{number}" for number in count(2)))
        else:
            candidates = chain(f"{kind}-{number}" for number in count(1))
        return next(name for name in candidates if name not in self._operators)

    def add(self, operator: Operator, producers: Sequence[str], key_by: int | None = None) -> Stream:
        """Add an operator that was checked already; what streams call, not users.

        Parameters
        ----------
        operator : Operator
            The operator, under a name from `choose_name`.
        producers : sequence of str
            The names of the operators that it reads.
        key_by : int, optional
            The note of the `key_by` that it uses.

        Returns
        -------
        Stream
            The operator's output.
        """
        self._operators[operator.name] = operator
        self._inputs[operator.name] = []
        self._consumers[operator.name] = []
        for producer in producers:
            self._inputs[operator.name].append(producer)
            self._consumers[producer].append(operator.name)
        if key_by is not None:
            self._key_bys_used.add(key_by)
        return Stream(self, (operator.name,))

    def connect(self, producers: Sequence[str], consumer: str) -> None:
        """Make operators inputs of another that is there already; what `Stream.feed` calls.

        Parameters
        ----------
        producers : sequence of str
            The names of the new inputs.
        consumer : str
            The name of the operator that reads them.

        Raises
        ------
        TopologyError
            When the consumer is a source, or has one of the inputs already.
        """
        if isinstance(self.operator(consumer), SourceOperator):
            raise TopologyError(f"source {consumer!r} reads no stream; feed the operator behind it, or use a union.")
        for producer in producers:
            if producer in self._inputs[consumer]:
                raise TopologyError(
                    f"{producer!r} feeds {consumer!r} already, its rows would count twice; feed it once."
                )
        for producer in producers:
            self._inputs[consumer].append(producer)
            self._consumers[producer].append(consumer)

    def note_key_by(self, producers: tuple[str, ...], keys: tuple[str, ...]) -> int:
        """Remember a `key_by`, so that one that is never used is found; what `Stream.key_by` calls.

        Parameters
        ----------
        producers : tuple of str
            The operators whose rows are keyed.
        keys : tuple of str
            The key columns.

        Returns
        -------
        int
            The note, handed to `add` with the operator that uses it.
        """
        self._key_bys.append((producers, keys))
        return len(self._key_bys) - 1

    def describe(self) -> str:
        """Return the topology as text, one line an operator.

        Returns
        -------
        str
            Name, kind, what it does and where its rows come from, for each operator.
        """
        return drawing.describe(self)

    def to_svg(self) -> str:
        """Return a drawing of the topology.

        Returns
        -------
        str
            An SVG document that stands on its own.
        """
        return drawing.svg(self)

    def __repr__(self) -> str:
        kinds = Counter(operator.kind for operator in self.operators)
        order = (cls.kind for cls in (SourceOperator, Map, Filter, Compute, SinkOperator))
        counts = ", ".join(f"{kinds[kind]} {kind}{'s'[: kinds[kind] - 1]}" for kind in order if kinds[kind])
        return f"<Topology {self._name!r}: {counts or 'empty'}>"

    def __str__(self) -> str:
        return self.describe()

    def _repr_html_(self) -> str:
        return drawing.html(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (self._pickled(),)

    def _pickled(self) -> bytes:
        """Pickle functions by value where they have no module to come from, for plain `pickle` too."""
        try:
            return bytes(cloudpickle.dumps(self.__dict__))
        except Exception as error:
            # Which exception comes depends on the object that cannot be pickled; all mean the same here.
            faults = ((operator, _pickling_fault(operator)) for operator in self.operators)
            at_fault, fault = next((found for found in faults if found[1] is not None), (None, error))
            where = f"topology {self._name!r}" if at_fault is None else f"{at_fault.kind} {at_fault.name!r}"
            raise SubmitError(
                f"{where} cannot be pickled, so it cannot go to workers: {type(fault).__name__}: {fault}. Open files, "
                "locks and connections inside the function, or make them there on first use."
            ) from fault

    def _cycle(self, among: list[str]) -> list[str]:
        """Return one cycle, first name repeated at its end, given operators each of which has an input among them."""
        members = set(among)
        path = [among[0]]
        seen = {among[0]: 0}
        while True:
            before = next(producer for producer in self._inputs[path[-1]] if producer in members)
            if before in seen:
                cycle = path[seen[before] :][::-1]
                break
            seen[before] = len(path)
            path.append(before)
        order = [*self._operators]
        first = cycle.index(min(cycle, key=order.index))
        return [*cycle[first:], *cycle[:first], cycle[first]]


def _restore(pickled: bytes) -> Topology:
    topology = Topology.__new__(Topology)
    topology.__dict__.update(cloudpickle.loads(pickled))
    return topology


def _pickling_fault(operator: Operator) -> Exception | None:
    """Return why an operator cannot be pickled, None if it can."""
    try:
        cloudpickle.dumps(operator)
    except Exception as error:  # becomes the answer
        return error
    return None
