"""State of an operator whose aggregates have changed since the checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pyarrow as pa

from dask_elastic.checkpoint.manifest import OperatorState
from dask_elastic.checkpoint.state_file import StateHeader
from dask_elastic.state.codec import decode, encode
from dask_elastic.state.declaration import difference
from dask_elastic.state.layout import layout_of
from dask_elastic.state.stored_values import dtype_of
from dask_elastic.topology.aggregates.aggregation import Aggregate
from dask_elastic.topology.aggregates.bundle import Bundle
from dask_elastic.topology.aggregates.carry_over import Origin, carry_over
from dask_elastic.topology.operators import Compute
from dask_elastic.topology.state_kind import Element, Map, StateKind
from dask_elastic.vocab.errors import CheckpointError, SchemaMismatch, StateError, TopologyError


class ChangedAggregates:
    """Converts the state of an operator to that of its present aggregates.

    Parameters
    ----------
    name : str
        The operator.
    before : mapping of str to Aggregate
        The aggregates of the checkpoint.
    now : mapping of str to Aggregate
        The present ones.
    origins : mapping of str to Origin
        How they follow from each other.
    """

    def __init__(
        self, name: str, before: Mapping[str, Aggregate], now: Mapping[str, Aggregate], origins: Mapping[str, Origin]
    ):
        self._name = name
        self._before = before
        self._now = now
        self._origins = origins

    @classmethod
    def of(cls, state: OperatorState, now: Compute) -> ChangedAggregates | None:
        """Return the conversion that the state of a checkpoint needs, None if it needs none.

        Parameters
        ----------
        state : OperatorState
            The operator's part of the manifest.
        now : Compute
            The operator as it is now.

        Raises
        ------
        CheckpointError
            When the state does not suffice for the present operator, or its earlier aggregates cannot be loaded.
        """
        if state.reading is None:
            return None
        before: Compute = state.reading.load(f"the definition of operator {state.name!r}")
        fix = "Give the operator another name to begin without state, and pass drop= with the former one."
        if before.join is not None or now.join is not None:
            if changed := _changed_join(before, now):
                raise CheckpointError(f"operator {state.name!r} has state of another kind: {changed}. {fix}")
            return None
        if changed := _changed_windows(before, now):
            raise CheckpointError(f"operator {state.name!r} has state of other windows: {changed}. {fix}")
        if before.aggregates is None or now.aggregates is None:
            if changed := _changed_declaration(before, now):
                raise CheckpointError(f"operator {state.name!r} has another kind of state: {changed}. {fix}")
            return None
        try:
            origins = carry_over(before.aggregates, now.aggregates)
        except TopologyError as error:
            raise CheckpointError(f"operator {state.name!r}: {error} in the checkpoint. {fix}") from error
        if [origin.fields for origin in origins.values()] == [*before.aggregates] == [*origins]:
            return None
        return cls(state.name, before.aggregates, now.aggregates, origins)

    def batch(self, header: StateHeader, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return encoded state of the checkpoint as state of the present aggregates.

        Parameters
        ----------
        header : StateHeader
            The header of the file with the rows.
        batch : RecordBatch
            Its rows.

        Raises
        ------
        CheckpointError
            When a value cannot be converted, or the input lacked a column.
        """
        assert header.input_schema is not None, "state has rows only behind the first batch"
        try:
            before, now = Bundle(self._before, header.input_schema), Bundle(self._now, header.input_schema)
            rows = decode(batch)
            known = before.split(list(rows.values))
            values = [value for name, bound in now.bound.items() for value in self._origins[name].convert(known, bound)]
        except (SchemaMismatch, StateError, TopologyError) as error:
            raise CheckpointError(f"the state of operator {self._name!r} cannot be converted: {error}") from error
        # Windows have fields of their own behind those of the aggregates.
        others = len(before.fields)
        fields = (*now.fields, *rows.fields[others:])
        return encode(replace(rows, fields=fields, values=[*values, *rows.values[others:]]))


def _changed_join(before: Compute, now: Compute) -> str:
    """Return how a join has changed; empty if rows that wait for the former one can wait for the present one."""
    if before.join is None or now.join is None:
        former, present = ("another operator" if one.join is None else one.join for one in (before, now))
        return f"that of {former} before, of {present} now"
    if before.join.same_state(now.join):
        return ""
    if str(before.join) != str(now.join):
        return f"{before.join} before, {now.join} now"
    return (
        f"of the columns of the results, {_changed_columns(before.join.output, now.join.output)}. To keep the state, "
        "have the columns of before joined: left_schema= and right_schema= choose them"
    )


def _changed_columns(before: pa.Schema, now: pa.Schema) -> str:
    """Return which columns are missing, new, or of another type."""
    types = [name for name in before.names if name in now.names and before.field(name).type != now.field(name).type]
    changes = [
        *(f"{name!r} is missing" for name in before.names if name not in now.names),
        *(f"{name!r} is new" for name in now.names if name not in before.names),
        *(f"{name!r} was {before.field(name).type} and is {now.field(name).type}" for name in types),
    ]
    return ", ".join(changes) or "the order has changed"


def _changed_windows(before: Compute, now: Compute) -> str:
    """Return how the windows have changed; empty if state of the former ones is state of the present ones."""
    former, present = before.windowing, now.windowing
    if present is None if former is None else former.has_same_state(present):
        return ""
    return f"{former or 'no windows'} before, {present or 'no windows'} now"


def _changed_declaration(before: Compute, now: Compute) -> str:
    """Return how the declared state of a function has changed; empty if it has not."""
    if (before.aggregates is None) != (now.aggregates is None):
        kinds = ["a function" if operator.aggregates is None else "aggregates" for operator in (before, now)]
        return f"that of {kinds[0]} before, of {kinds[1]} now"
    nothing = pa.schema([])
    former, present = layout_of(before), layout_of(now)
    changed = [
        f"{name!r} was {former.kinds[name]} and is {kind}"
        for name, kind in present.kinds.items()
        if name in former.kinds and not _same_kind(former.kinds[name], kind)
    ]
    timers = {value: f"timer {name!r}" for layout in (former, present) for name, value in layout.timers.items()}
    changed += [f"{timers.get(name, repr(name))} is missing" for name in former.kinds if name not in present.kinds]
    changed += [f"{timers.get(name, repr(name))} is new" for name in present.kinds if name not in former.kinds]
    return ", ".join(changed) or difference(nothing, nothing, former.fields, present.fields)


def _same_kind(former: StateKind, present: StateKind) -> bool:
    """Return whether what one declaration has stored is state of another; the length of a `ttl` does not matter."""
    if type(former) is not type(present) or not _same_type(former.type, present.type):
        return False
    if isinstance(former, Map) and isinstance(present, Map) and not _same_type(former.key, present.key):
        return False
    clocks = [None if kind.ttl is None else kind.ttl_clock for kind in (former, present)]
    return clocks[0] == clocks[1]


def _same_type(former: Element, present: Element) -> bool:
    if not isinstance(former, pa.DataType) or not isinstance(present, pa.DataType):
        return former is present
    stored = dtype_of(former)
    # Values that are stored as objects of Python do not show their type.
    alike = not stored.hasobject or any(each(former) and each(present) for each in (_is_text, _is_bytes))
    return former == present or (alike and stored == dtype_of(present))


def _is_text(type_: pa.DataType) -> bool:
    return bool(pa.types.is_string(type_) or pa.types.is_large_string(type_))


def _is_bytes(type_: pa.DataType) -> bool:
    return bool(pa.types.is_binary(type_) or pa.types.is_large_binary(type_))
