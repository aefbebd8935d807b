"""The graph of a topology: its operators and the edges between them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, count

from dask_elastic.topology import validation
from dask_elastic.topology.operators import Compute, Filter, MapOperator, Operator, SourceOperator
from dask_elastic.topology.windows.late_rows import LateRows
from dask_elastic.topology.windows.one_key import ONE_KEY
from dask_elastic.vocab.errors import TopologyError, UnknownOperator


class OperatorGraph:
    """Named operators, the edges between them, and the checks that concern them all; base class of `Topology`.

    Parameters
    ----------
    name : str
        The name of the topology.

    Raises
    ------
    TopologyError
        When the name is not a str, is empty, or cannot be printed.
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

    def operator(self, name: str) -> Operator:
        """Return the operator with a name.

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
            When no operator has that name.
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

        Raises
        ------
        UnknownOperator
            When no operator has that name.
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

        Raises
        ------
        UnknownOperator
            When no operator has that name.
        """
        self.operator(name)
        return tuple(self._operators[consumer] for consumer in self._consumers[name])

    def in_order(self) -> tuple[Operator, ...]:
        """Return all operators, each after all of its inputs.

        Returns
        -------
        tuple of Operator
            In topological order; among independent operators, in the order in which they were added.

        Raises
        ------
        TopologyError
            When there is a cycle; the message spells it out as a path.
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
            raise TopologyError(
                f"topology {self._name!r} has a cycle, {path}; rows cannot be fed back, remove one of these edges."
            )
        return tuple(self._operators[name] for name in ready)

    def check_graph(self) -> None:
        """Check how the operators are connected; each of them was checked when it was added.

        Raises
        ------
        TopologyError
            When there is a cycle or no source, or when nothing reads the rows of a source, a map, a filter or a
            `key_by`.
        """
        if not any(isinstance(operator, SourceOperator) for operator in self.operators):
            raise TopologyError(f"topology {self._name!r} has no source; begin with topology.source(name, source).")
        self.in_order()
        # A key_by whose compute was refused counts as used when the same rows were keyed the same way again.
        used = {self._key_bys[position] for position in self._key_bys_used}
        for producers, keys in self._key_bys:
            if (producers, keys) not in used:
                call = f"key_by({', '.join(map(repr, keys))})" if keys else "window"
                raise TopologyError(
                    f"topology {self._name!r}: {call} of {' + '.join(map(repr, producers))} is not used; add "
                    ".compute(...) after it, or remove it."
                )
        for operator in self.operators:
            if isinstance(operator, SourceOperator | MapOperator | Filter) and not self._consumers[operator.name]:
                raise TopologyError(
                    f"topology {self._name!r}: nothing reads {operator.kind} {operator.name!r}; add .sink(...) or "
                    ".key_by(...).compute(...) after it, or remove it."
                )
            windowing = operator.windowing if isinstance(operator, Compute) else None
            if windowing is not None and windowing.late == "stream" and self._late_of(operator.name) is None:
                raise TopologyError(
                    f"topology {self._name!r}: compute {operator.name!r} sends late rows to a stream that nothing "
                    "reads; read the stream `late` of its results, or omit late='stream'."
                )
        self._check_event_time()

    def late_rows(self, producers: tuple[str, ...]) -> str:
        """Return the name of the operator with the late rows of a windowed compute; called by `Stream.late`.

        Parameters
        ----------
        producers : tuple of str
            The operators of the stream: the compute.

        Returns
        -------
        str
            The operator, which is added if there is none.

        Raises
        ------
        TopologyError
            When it is no compute with such a stream.
        """
        name = producers[0]
        operator = self.operator(name)
        windowing = operator.windowing if isinstance(operator, Compute) and len(producers) == 1 else None
        if windowing is None or windowing.late != "stream":
            raise TopologyError(
                f"stream of {' + '.join(map(repr, producers))} has no late rows; only results of windows have, with "
                "window(...).compute(..., late='stream')."
            )
        late = self._late_of(name)
        if late is None:
            late = self.choose_name("map", f"{name}-late", None)
            self.add(LateRows(late), (name,))
        return late

    def _late_of(self, compute: str) -> str | None:
        late = (name for name in self._consumers[compute] if isinstance(self._operators[name], LateRows))
        return next(late, None)

    def _check_event_time(self) -> None:
        """Check that event time reaches the operators with timers in event time, and all rows of windows."""
        timed: set[str] = set()
        untimed: dict[str, str] = {}
        for operator in self.in_order():
            inputs = self._inputs[operator.name]
            without = next((untimed[name] for name in inputs if name in untimed), None)
            if isinstance(operator, SourceOperator):
                without = operator.name if operator.source.event_time is None else None
            if (isinstance(operator, SourceOperator) and without is None) or timed.intersection(inputs):
                timed.add(operator.name)
            self._check_join(operator, timed)
            if isinstance(operator, Compute) and "event" in operator.clocks and operator.join is None:
                self._check_clock(operator, operator.name in timed, without)
            elif without is not None and not isinstance(operator, Compute):
                # Rows that a compute returns follow the watermark of its inputs that have event time.
                untimed[operator.name] = without

    def _check_join(self, operator: Operator, timed: set[str]) -> None:
        """Check that the watermark of both sides of a join advances."""
        if not isinstance(operator, Compute) or operator.join is None:
            return
        for which, side in zip(("left", "right"), self._inputs[operator.name], strict=False):
            if side not in timed:
                raise TopologyError(
                    f"topology {self._name!r}: join {operator.name!r} waits for the event time of both sides, but no "
                    f"source of its {which} side has any; give that source event_time='column'."
                )

    def _check_clock(self, operator: Compute, timed: bool, without: str | None) -> None:
        """Check that the event time of an operator advances; `without` is a source whose rows have none."""
        where = f"topology {self._name!r}: compute {operator.name!r}"
        if operator.windowing is not None and (without is not None or not timed):
            named = f"source {without!r} before it has no" if without is not None else "no source before it has"
            raise TopologyError(
                f"{where} has windows, {operator.windowing}, but {named} event time, so that they would not close; "
                "give the source event_time='column'."
            )
        if not timed and operator.time is not None:
            raise TopologyError(
                f"{where} has state with ttl_clock='event', but no source before it has event time, so that it would "
                "not expire; give a source event_time='column', or omit ttl_clock."
            )
        if not timed:
            names = [name for name, timer in (operator.timers or {}).items() if timer.clock == "event"]
            raise TopologyError(
                f"{where} has timers in event time, {names}, but no source before it has event time; give a source "
                "event_time='column', or write de.Timer(function, clock='processing')."
            )

    def choose_name(self, kind: str, given: object, function: object) -> str:
        """Return the name for a new operator: the given one, or one derived from its function or kind.

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
            When the given name is taken or cannot be a name.
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

    def add(self, operator: Operator, producers: Sequence[str], key_by: int | None = None) -> None:
        """Add an operator that has been checked; called by `Topology` and its streams, not by users.

        Parameters
        ----------
        operator : Operator
            The operator, with a name from `choose_name`.
        producers : sequence of str
            The names of the operators that it reads.
        key_by : int, optional
            The number of the `key_by` that it uses, as `note_key_by` returned it.
        """
        self._operators[operator.name] = operator
        self._inputs[operator.name] = []
        self._consumers[operator.name] = []
        for producer in producers:
            self._inputs[operator.name].append(producer)
            self._consumers[producer].append(operator.name)
        if key_by is not None:
            self._key_bys_used.add(key_by)

    def connect(self, producers: Sequence[str], consumer: str) -> None:
        """Add inputs to an existing operator; called by `Stream.feed`.

        Parameters
        ----------
        producers : sequence of str
            The names of the new inputs.
        consumer : str
            The name of the operator that reads them.

        Raises
        ------
        UnknownOperator
            When no operator has the consumer's name.
        TopologyError
            When the consumer is a source, has windows over all rows, or already has one of the inputs.
        """
        operator = self.operator(consumer)
        if isinstance(operator, SourceOperator):
            raise TopologyError(
                f"source {consumer!r} reads no stream; feed the operator that follows it, or use a union."
            )
        if isinstance(operator, Compute) and operator.keys == (ONE_KEY,):
            raise TopologyError(
                f"compute {consumer!r} has windows over all rows of its input, which cannot be fed; use a union before "
                "window(...)."
            )
        for producer in producers:
            if producer in self._inputs[consumer]:
                raise TopologyError(
                    f"{producer!r} already feeds {consumer!r}, its rows would count twice; feed it once."
                )
        for producer in producers:
            self._inputs[consumer].append(producer)
            self._consumers[producer].append(consumer)

    def note_key_by(self, producers: tuple[str, ...], keys: tuple[str, ...]) -> int:
        """Record a `key_by`, so that `validate` finds one that is never used; called by `Stream.key_by`.

        Parameters
        ----------
        producers : tuple of str
            The operators whose rows are keyed.
        keys : tuple of str
            The key columns.

        Returns
        -------
        int
            The number of this `key_by`, for `add`.
        """
        self._key_bys.append((producers, keys))
        return len(self._key_bys) - 1

    def _cycle(self, among: list[str]) -> list[str]:
        """Return one cycle with its first name repeated at the end; each of `among` has an input among them."""
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


def check_same(own: OperatorGraph, given: OperatorGraph, where: str) -> None:
    """Check that a stream that is given to another one is of the same topology.

    Parameters
    ----------
    own, given : OperatorGraph
        The topologies of both streams.
    where : str
        The stream and its method, for the error text.

    Raises
    ------
    TopologyError
        When they are two topologies, also of one name.
    """
    if own is given:
        return
    named = f"of topology {given.name!r}, but this is topology {own.name!r}"
    if own.name == given.name:
        named = f"of another topology that is also named {own.name!r}, such as an earlier one of a notebook's cell"
    raise TopologyError(f"{where} was given a stream {named}; read both from one topology.")
