"""`Topology`: what a user writes and submits."""

from __future__ import annotations

from collections import Counter
from typing import Any

import cloudpickle

from dask_elastic.topology import validation
from dask_elastic.topology.checks.chain_check import check_chains
from dask_elastic.topology.checks.key_check import check_keys
from dask_elastic.topology.checks.source_check import check_sources
from dask_elastic.topology.component import build_components
from dask_elastic.topology.fused import explanation
from dask_elastic.topology.fused.groups import Fuse, Rates, fused_groups, pairs
from dask_elastic.topology.graph import OperatorGraph
from dask_elastic.topology.known_schemas import known_inputs
from dask_elastic.topology.operators import Compute, Filter, MapOperator, Operator, SinkOperator, SourceOperator
from dask_elastic.topology.source import Source
from dask_elastic.topology.stream import Stream
from dask_elastic.vocab.errors import SubmitError
from dask_elastic.vocab.pickled_functions import pickled


class Topology(OperatorGraph):
    """What a job does: sources, operators and sinks, and the streams between them.

    A topology is a value: it can be printed, drawn, validated, pickled, and submitted several times. Nothing runs until
    it is submitted.

    Parameters
    ----------
    name : str
        The name of the topology, from which jobs get theirs.

    Raises
    ------
    TopologyError
        When the name is not a str, is empty, or cannot be printed.

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

    def source(self, name: str, source: Source) -> Stream:
        """Add a source.

        Parameters
        ----------
        name : str
            The operator's name.
        source : Source
            Where rows come from, such as `sources.Parquet("flights.parquet")`.

        Returns
        -------
        Stream
            The source's rows.

        Raises
        ------
        TopologyError
            When `source` is not a `Source`, one of its options is out of range, or the name is taken.

        Examples
        --------
        >>> from dask_elastic.topology import Source
        >>> class Flights(Source):
        ...     def read(self, context):
        ...         yield from ()
        >>> Topology("delays").source("flights", Flights())
        Stream('flights' of topology 'delays')
        """
        validation.check_name(name, "source")
        checked = validation.check_source(source, name)
        operator = SourceOperator(self.choose_name("source", name, None), checked)
        self.add(operator, ())
        return Stream(self, (operator.name,))

    def describe(self) -> str:
        """Return the topology as text, one line per operator.

        Returns
        -------
        str
            Name, kind, details and inputs of each operator.

        Examples
        --------
        >>> Topology("delays").describe()
        "Topology 'delays': 0 operators"
        """
        from dask_elastic.topology import drawing

        return drawing.describe(self)

    def validate(self) -> None:
        """Check the topology as a whole, as far as this is possible without a cluster; `submit` makes the same checks.

        Sources are not read: of those whose columns are known only where they run, and behind functions, types are not
        checked.

        Raises
        ------
        TopologyError
            When there is a cycle or no source, when nothing reads the rows of a source, a map, a filter or a `key_by`,
            when a column cannot be a key or be aggregated because of its type, or when too many operators follow each
            other in one task.
        SchemaMismatch
            When an operator reads a column that its input lacks, or the streams of a union differ in a type.
        SourceError
            When a source lacks a column that is read, or cannot be read, as far as this process can tell.

        Examples
        --------
        >>> import dask_elastic as de
        >>> topology = de.Topology("routes")
        >>> flights = topology.source("flights", de.sources.Arrow({"stops": [["JFK", "LAX"]]}))
        >>> flights.key_by("stops").compute({"flights": de.aggregate.Count()}, name="routes")
        Stream('routes' of topology 'routes')
        >>> topology.validate()
        Traceback (most recent call last):
            ...
        dask_elastic.vocab.errors.TopologyError: compute 'routes': the key column 'stops' has type list<... cannot ...
        """
        components = build_components(self)
        check_sources(components)
        check_chains(components)
        check_keys(self, known_inputs(self))

    def explain(self, fuse: Fuse = "auto", rates: Rates | None = None) -> str:
        """Return which computes run in one task with a choice of `submit`'s ``fuse``, and why others do not.

        Parameters
        ----------
        fuse : "auto", False or sequence of (str, str)
            The choice: by Enorm's Algorithm 1, none, or pairs of a compute and one that reads it.
        rates : mapping of (str, str) to float, optional
            Rows per second by producer and consumer, from a trial. Without them "auto" goes by shared key columns.

        Returns
        -------
        str
            One line per compute.

        Raises
        ------
        TopologyError
            When the topology cannot run, a pair cannot be fused, or the rates are not valid.

        Examples
        --------
        >>> import dask_elastic as de
        >>> topology = de.Topology("delays")
        >>> flights = topology.source("flights", de.sources.Arrow({"plane": ["a"], "delay": [1]}))
        >>> planes = flights.key_by("plane").compute({"delay": de.aggregate.Mean("delay")}, name="planes")
        >>> planes.key_by("plane").compute({"worst": de.aggregate.Max("delay")}, name="worst")
        Stream('worst' of topology 'delays')
        >>> print(topology.explain())
        Topology 'delays': 2 computes in 1 component
          planes  by plane
          worst   in the task of 'planes'
        """
        self.check_graph()
        return explanation.explain(self, fuse, rates)

    def fusions(self, rates: Rates | None = None) -> list[tuple[str, str]]:
        """Return the pairs of computes that run in one task by Enorm's Algorithm 1, for `submit`'s ``fuse``.

        Parameters
        ----------
        rates : mapping of (str, str) to float, optional
            As for `explain`.

        Returns
        -------
        list of (str, str)
            Each compute that is fused with one before it, behind this one.

        Raises
        ------
        TopologyError
            When the topology cannot run, or the rates are not valid.

        Examples
        --------
        >>> import dask_elastic as de
        >>> topology = de.Topology("delays")
        >>> flights = topology.source("flights", de.sources.Arrow({"plane": ["a"], "delay": [1]}))
        >>> planes = flights.key_by("plane").compute({"delay": de.aggregate.Mean("delay")}, name="planes")
        >>> planes.key_by("plane").compute({"worst": de.aggregate.Max("delay")}, name="worst")
        Stream('worst' of topology 'delays')
        >>> topology.fusions()
        [('planes', 'worst')]
        """
        self.check_graph()
        return pairs(self, fused_groups(self, "auto", rates))

    def to_svg(self, fuse: Fuse = False) -> str:
        """Return a drawing of the topology.

        Parameters
        ----------
        fuse : False, "auto" or sequence of (str, str)
            As for `explain`: computes in the task of another one say so.

        Returns
        -------
        str
            A complete SVG document.

        Examples
        --------
        >>> Topology("delays").to_svg()[:4]
        '<svg'
        """
        from dask_elastic.topology import drawing

        return drawing.svg(self, explanation.task_of(fused_groups(self, fuse)))

    def __repr__(self) -> str:
        kinds = Counter(operator.kind for operator in self.operators)
        order = (cls.kind for cls in (SourceOperator, MapOperator, Filter, Compute, SinkOperator))
        counts = ", ".join(f"{kinds[kind]} {kind}{'s'[: kinds[kind] - 1]}" for kind in order if kinds[kind])
        return f"<Topology {self.name!r}: {counts or 'empty'}>"

    def __str__(self) -> str:
        return self.describe()

    def _repr_html_(self) -> str:
        from dask_elastic.topology import drawing

        return drawing.html(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (self._pickled(),)

    def _pickled(self) -> bytes:
        """Pickle the topology with cloudpickle, so that plain `pickle` also handles functions of no module."""
        try:
            return pickled(self.__dict__)
        except Exception as error:
            # An object that cannot be pickled may raise any exception.
            faults = ((operator, _pickling_fault(operator)) for operator in self.operators)
            at_fault, fault = next((found for found in faults if found[1] is not None), (None, error))
            where = f"topology {self.name!r}" if at_fault is None else f"{at_fault.kind} {at_fault.name!r}"
            raise SubmitError(
                f"{where} cannot be pickled, so it cannot be sent to workers: {type(fault).__name__}: {fault}. Open "
                "files, locks and connections inside the function, or create them there on first use."
            ) from fault


def _restore(pickled: bytes) -> Topology:
    topology = Topology.__new__(Topology)
    topology.__dict__.update(cloudpickle.loads(pickled))
    return topology


def _pickling_fault(operator: Operator) -> Exception | None:
    """Return the exception that pickling an operator raises, or None."""
    try:
        cloudpickle.dumps(operator)
    except Exception as error:  # returned
        return error
    return None
