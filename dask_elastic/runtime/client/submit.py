"""Submission of a topology."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dask_elastic.runtime.client.call import check_connected, checked_client
from dask_elastic.runtime.client.submission.installation import Installation
from dask_elastic.runtime.config.many_imports import many_imports
from dask_elastic.runtime.config.tls_policy import check_exposure
from dask_elastic.topology.topology import Topology

if TYPE_CHECKING:
    from distributed import Client

    from dask_elastic.runtime.client.job import Job
    from dask_elastic.topology.fused.groups import Fuse


def submit(
    topology: Topology,
    client: Client | None = None,
    *,
    name: str | None = None,
    cores: Mapping[str, int] | None = None,
    fuse: Fuse = False,
    **options: Any,
) -> Job:
    """Start a topology on a Dask cluster.

    The job runs on the cluster: it continues when this client closes, and `dask_elastic.job` finds it by its name.

    Parameters
    ----------
    topology : Topology
        The topology to run.
    client : distributed.Client, optional
        A client of the cluster; the current client if left out.
    name : str, optional
        Name of the job; the topology's name if left out. Two running jobs cannot have the same name.
    cores : mapping of str to int, optional
        Cores of each executor, by stateful operator, at most the slots of the cluster. The control loop does not change
        them, as after `Job.set_cores`. Other operators start with the remaining cores. Aggregates use one core of each
        worker as long as more are not faster, see ``gather_shards``.
    fuse : False, "auto" or sequence of (str, str)
        Which computes run in one task by direct calls, instead of sending rows to each other: none; those that share
        key columns (`Topology.explain` shows them); or pairs of a compute and one that reads it, as of
        `Topology.fusions`.
    **options
        What the control loop aims at: ``latency_target``, ``planner``, ``placement``,
        ``paradigm``, ``dry_run``. How the job runs:
        ``on_error``, ``inbox_time``, ``queue_time``, ``balance_interval``, ``balance_threshold``, ``light_load``,
        ``gather_shards``, ``flush_interval``, ``channel_window``, ``migration``, ``longest_tick``,
        ``watermark_interval``, ``idle_timeout``, ``report_interval``, ``stall_after``. Where its state is:
        ``state_store``, ``state_memory``. How it survives losses: ``checkpoint`` (a folder), ``checkpoint_interval``,
        ``checkpoint_keep``, ``restart_attempts``. The configuration page explains them. Defaults come from the Dask
        configuration under ``elastic``.

    Returns
    -------
    Job
        A handle on the running job.

    Raises
    ------
    TypeError
        If `topology` is not a Topology, or `client` is not a Client.
    TopologyError
        If the topology cannot run, for example because an operator has no input.
    SchemaMismatch
        If an operator reads a column that its input lacks, or the streams of a union differ in the type of a key or of
        an aggregated column, as far as that is known before the job runs.
    SubmitError
        If an option is unknown or has an invalid value, user code cannot be pickled, the name is in use, the cluster
        has no workers, or versions of dask_elastic differ between client, scheduler and workers.

    Warns
    -----
    UserWarning
        If workers of the cluster hang; names them. The job runs without them until they answer.

    Examples
    --------
    >>> import dask_elastic as de
    >>> import pyarrow as pa
    >>> from dask.distributed import Client
    >>> topology = de.Topology("letters")
    >>> letters = topology.source("letters", de.sources.Arrow(pa.table({"letter": ["a", "b", "a"]})))
    >>> counted = letters.key_by("letter").compute({"seen": de.aggregate.Count()}, name="per_letter")
    >>> with Client(n_workers=1, processes=False, dashboard_address=None) as client:
    ...     job = de.submit(topology, client)
    ...     job.wait(progress=False)
    ...     job.state("per_letter").to_arrow().sort_by("letter").to_pydict()
    {'letter': ['a', 'b'], 'seen': [2, 1]}
    """
    if not isinstance(topology, Topology):
        raise TypeError(f"submit takes a Topology, not {type(topology).__name__}")
    client = checked_client(client)
    check_connected(client)
    check_exposure([client.scheduler.address])
    installation = Installation(client)
    # Imported while the workers import the engine.
    with many_imports():
        from dask_elastic.runtime.client.submission.described_job import checked_job
        from dask_elastic.runtime.client.submission.job_start import start

    return start(checked_job(topology, name, cores, fuse, options), client, installation)
