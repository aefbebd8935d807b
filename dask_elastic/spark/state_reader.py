"""The state of an operator in a checkpoint as a Spark DataFrame: each task reads the keys of some shards."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from dask_elastic.checkpoint.saved_state import SavedState
from dask_elastic.spark.target import FORMAT
from dask_elastic.vocab.errors import HandoffError

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

OPTIONS = ("operator", "number", "parts", "path")

_WIDER = {pa.uint8(): pa.int16(), pa.uint16(): pa.int32(), pa.uint32(): pa.int64(), pa.uint64(): pa.decimal128(20, 0)}


@dataclass(frozen=True)
class StateTarget:
    """Which state is read.

    Parameters
    ----------
    url : str
        The folder of checkpoints, or of a savepoint.
    operator : str
        The stateful operator.
    number : int or None
        The number of the checkpoint; the newest by default.
    parts : int or None
        The number of Spark's partitions; by default one per executor that has written the state.
    """

    url: str
    operator: str
    number: int | None = None
    parts: int | None = None

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> StateTarget:
        """Parse the options of a reader.

        Parameters
        ----------
        options : mapping of str to str
            ``path``, ``operator``, and optionally ``number`` and ``parts``.

        Raises
        ------
        HandoffError
            If an option is missing, unknown or invalid.

        Examples
        --------
        >>> StateTarget.from_options({"path": "/checkpoints", "operator": "per_plane", "number": "17"}).number
        17
        """
        given = {name.lower(): value for name, value in options.items()}
        unknown = sorted(given.keys() - {*OPTIONS})
        if unknown:
            raise HandoffError(f"format {FORMAT!r} reads with {', '.join(OPTIONS)}; it has no option {unknown[0]!r}.")
        for option, example in (("operator", '.option("operator", name)'), ("path", ".load(folder of checkpoints)")):
            if not given.get(option):
                raise HandoffError(f"format {FORMAT!r} reads the state of an operator in a checkpoint: add {example}.")
        number, parts = (_count(given, option) for option in ("number", "parts"))
        return cls(given["path"], given["operator"], number, parts)


class StateReader(DataSourceReader):
    """Reads the state of an operator; Spark makes it on the driver and pickles it for its Python workers.

    Parameters
    ----------
    target : StateTarget
        Which state.
    """

    def __init__(self, target: StateTarget):
        self._operator = target.operator
        saved = SavedState.open(target.url, target.operator, target.number)
        # All tasks read the same checkpoint, whichever is the newest when they start.
        self._folder, self._number = saved.folder, saved.manifest.number
        # With more, several tasks read the same files.
        self._parts = target.parts or saved.executors
        if self._parts > saved.state.groups:
            raise HandoffError(f"option parts is {self._parts}; the state has {saved.state.groups} shards.")
        self.arrow_schema = _for_spark(saved.schema())

    def schema(self) -> StructType:
        """Return the columns: the keys, then the results."""
        from pyspark.sql.pandas.types import from_arrow_schema

        return from_arrow_schema(self.arrow_schema)

    def partitions(self) -> list[InputPartition]:
        """Return the parts that Spark's tasks read."""
        return [InputPartition(part) for part in range(self._parts)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read a part; called in Spark's Python workers."""
        saved = SavedState.open(self._folder.url, self._operator, self._number, self._folder.storage_options)
        portions = saved.portions(self._parts)
        some = range(partition.value * portions, (partition.value + 1) * portions)
        for table in saved.scan(some, self._parts * portions):
            yield from table.cast(self.arrow_schema).to_batches()


def _count(given: Mapping[str, str], option: str) -> int | None:
    text = given.get(option)
    if text is None:
        return None
    if not text.isdecimal() or int(text) < 1:
        raise HandoffError(f"option {option} is {text!r}; give a whole number above 0.")
    return int(text)


def _for_spark(schema: pa.Schema) -> pa.Schema:
    return pa.schema([field.with_type(_type_for_spark(field.type)).with_metadata(None) for field in schema])


def _type_for_spark(kind: pa.DataType) -> pa.DataType:
    """Return the nearest type that Spark has."""
    types = pa.types
    if kind in _WIDER:
        return _WIDER[kind]
    if types.is_float16(kind):
        return pa.float32()
    if types.is_large_string(kind):
        return pa.string()
    if types.is_large_binary(kind) or types.is_fixed_size_binary(kind):
        return pa.binary()
    if types.is_timestamp(kind):
        return pa.timestamp("us", kind.tz)
    if types.is_duration(kind):
        return pa.duration("us")
    if types.is_list(kind) or types.is_large_list(kind):
        return pa.list_(_type_for_spark(kind.value_type))
    if types.is_map(kind):
        return pa.map_(_type_for_spark(kind.key_type), _type_for_spark(kind.item_type))
    if types.is_struct(kind):
        return pa.struct([field.with_type(_type_for_spark(field.type)) for field in kind])
    return kind
