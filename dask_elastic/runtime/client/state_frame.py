"""The state of an operator as a Dask DataFrame: each partition reads one executor when it is computed."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from dask_elastic.runtime.client.call import call_scheduler, call_worker, checked_client
from dask_elastic.runtime.protocol import job_calls, part_calls
from dask_elastic.runtime.protocol.codec import Payload
from dask_elastic.runtime.protocol.job_spec import VACANT
from dask_elastic.runtime.protocol.tables import read_table
from dask_elastic.topology.schema import describe_difference
from dask_elastic.vocab.errors import MoveRefused, NodeLost, SchemaMismatch, UnknownJob

if TYPE_CHECKING:
    import dask.dataframe as dd
    import pandas as pd
    from distributed import Client

LOOKS = 10
"""How often a read looks where an executor is that moves meanwhile."""


def state_frame(client: Client, job: str, operator: str) -> dd.DataFrame:
    """Return the state of an operator as a Dask DataFrame.

    Parameters
    ----------
    client : distributed.Client
        A client of the cluster, which reads the types of the columns now.
    job, operator : str
        Names of the job and of the operator.

    Returns
    -------
    dask.dataframe.DataFrame
        One partition per executor.
    """
    import dask.dataframe as dd

    places = call_scheduler(client, job_calls.StatePlaces(job, operator))
    types = _types(client, job, operator, places)
    return dd.from_map(
        read_partition,
        range(len(places.homes)),
        meta=_frame(types.empty_table()),
        label="state",
        frame=uuid.uuid4().hex,
        job=job,
        generation=places.generation,
        operator=operator,
        types=types,
    )


def read_partition(
    executor: int, *, frame: str, job: str, generation: int, operator: str, types: pa.Schema
) -> pd.DataFrame:
    """Read the state of one executor at its home; runs in a task on any worker, or at a client.

    Parameters
    ----------
    executor : int
        The number of the executor.
    frame : str
        Identifies the frame: Dask would share results between tasks with equal arguments.
    job, operator : str
        Names of the job and of the operator.
    generation : int
        The generation of the job that the frame was made for.
    types : Schema
        The columns, as the frame announces them.

    Returns
    -------
    pandas.DataFrame
        One row per key.

    Raises
    ------
    UnknownJob
        If the job was submitted again since.
    NodeLost
        If the home has left the cluster or does not answer.
    SchemaMismatch
        If the columns have got other types since.
    """
    call = part_calls.State(job, generation, operator, executor)
    parts = [read_table(part) for part in _read(checked_client(None), call)]
    if not parts:
        return _frame(types.empty_table())
    table = parts[0]
    if difference := describe_difference(types, table.schema):
        raise SchemaMismatch(
            f"job {job!r}, state of {operator!r}: {difference}. The frame was made when these types were not known; "
            "call to_dask() anew"
        )
    return _frame(table)


def _read(client: Client, call: part_calls.State) -> tuple[Payload, ...]:
    """Read the state of an executor at its home, which is looked up now, since executors move."""
    for _ in range(LOOKS):
        places = call_scheduler(client, job_calls.StatePlaces(call.job, call.operator))
        if places.generation != call.generation:
            raise UnknownJob(
                f"job {call.job!r} was submitted again after this frame was made; call to_dask() of its state anew"
            )
        try:
            return _asked(client, places, call)
        except MoveRefused as refused:
            # The scheduler answers where it is when it has arrived.
            moved = refused
    raise moved


def _types(client: Client, job: str, operator: str, places: job_calls.StatePlacesAnswer) -> pa.Schema:
    """Return the types of the columns: of the first executor that has any, else as far as the topology tells them."""
    for executor in range(len(places.homes)):
        call = part_calls.StateTypes(job, places.generation, operator, executor)
        for found in _asked(client, places, call):
            return read_table(found).schema
    return read_table(places.empty).schema if places.empty is not None else pa.schema([])


def _asked(
    client: Client, places: job_calls.StatePlacesAnswer, call: part_calls.State | part_calls.StateTypes
) -> tuple[Payload, ...]:
    """Call the home of an executor."""
    address = places.homes[call.executor]
    lost = f"job {call.job!r}: the state of {call.operator!r}, executor {call.executor}, was on a worker"
    if address == VACANT:
        raise NodeLost(f"{lost} that has left the cluster; submit the job again")
    try:
        return call_worker(client, address, call)
    except OSError as error:
        raise NodeLost(f"{lost}, {address}, that does not answer: {error}; submit the job again") from error


def _frame(table: pa.Table) -> pd.DataFrame:
    import pandas as pd

    # Arrow's own dtypes: all partitions have the same types, whether or not they have nulls.
    mapper: Callable[[pa.DataType], Any] = pd.ArrowDtype
    frame: pd.DataFrame = table.to_pandas(types_mapper=mapper)
    return frame
