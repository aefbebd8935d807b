"""Gives Spark's Python workers the address and credentials of a Dask cluster, as environment variables of Dask."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from dask_elastic.spark.failure import SparkFailed
from dask_elastic.spark.private_files import private_directory

# Fields of distributed.Security and the variables from which Dask's configuration takes them.
VARIABLES = {
    "tls_ca_file": "DASK_DISTRIBUTED__COMM__TLS__CA_FILE",
    "tls_ciphers": "DASK_DISTRIBUTED__COMM__TLS__CIPHERS",
    "tls_client_cert": "DASK_DISTRIBUTED__COMM__TLS__CLIENT__CERT",
    "tls_client_key": "DASK_DISTRIBUTED__COMM__TLS__CLIENT__KEY",
    "tls_worker_cert": "DASK_DISTRIBUTED__COMM__TLS__WORKER__CERT",
    "tls_worker_key": "DASK_DISTRIBUTED__COMM__TLS__WORKER__KEY",
}


REQUIRED = "DASK_DISTRIBUTED__COMM__REQUIRE_ENCRYPTION"

_WRITING = threading.Lock()
_WRITTEN: dict[frozenset[tuple[str, str]], dict[str, str]] = {}
"""The files of credentials in memory: connections are told apart by their paths, and reused if these are the same."""


def grant_access(environment: dict[str, str], client: Any) -> None:
    """Set the address and credentials of a client's cluster in an environment, replacing those of another cluster.

    Parameters
    ----------
    environment : dict of str to str
        The environment of Spark's Python workers.
    client : distributed.Client
        A client of the cluster.

    Raises
    ------
    SparkFailed
        As `access`.
    """
    found = access(client)
    for variable in (REQUIRED, *VARIABLES.values()):
        environment.pop(variable, None)
    environment.update(found)


def access(client: Any) -> dict[str, str]:
    """Return the environment variables from which `dask.config` reads a cluster's address and credentials.

    Parameters
    ----------
    client : distributed.Client
        A client of the cluster.

    Returns
    -------
    dict of str to str
        ``DASK_SCHEDULER_ADDRESS``, and with TLS the paths of the credentials.

    Raises
    ------
    SparkFailed
        If the cluster runs inside this process.

    Notes
    -----
    Credentials in memory, such as those of ``Security.temporary()``, are written to files that only this user can read
    and that are removed when this process ends; if it is killed, by the next process of this user on this host that
    starts Spark or writes such files. Spark's workers on other hosts cannot read these files; clusters of several hosts
    need credentials in files that exist on every host.
    """
    address = client.scheduler.address
    if address.startswith("inproc:"):
        raise SparkFailed(
            f"the Dask cluster at {address} runs inside this process, where Spark's workers cannot reach it: start it "
            "with Client(processes=True), or use a client of another cluster."
        )
    found = {"DASK_SCHEDULER_ADDRESS": address}
    security = client.security
    if not security.require_encryption and not address.startswith("tls:"):
        return found
    found[REQUIRED] = str(bool(security.require_encryption))
    given = {field: getattr(security, field) for field in VARIABLES}
    return {**found, **_as_files({field: value for field, value in given.items() if value is not None})}


def _as_files(credentials: dict[str, str]) -> dict[str, str]:
    found = {}
    in_memory = frozenset((field, value) for field, value in credentials.items() if "\n" in value)
    written = _written(in_memory)
    for field, value in credentials.items():
        if field in written:
            value = written[field]
        elif field != "tls_ciphers":
            value = str(Path(value).absolute())
        found[VARIABLES[field]] = value
    return found


def _written(credentials: frozenset[tuple[str, str]]) -> dict[str, str]:
    """Return the paths of files with credentials; they are written once, and again if they were deleted."""
    with _WRITING:
        paths = _WRITTEN.get(credentials, {})
        if credentials and not (paths and all(Path(path).exists() for path in paths.values())):
            directory = private_directory("tls")
            paths = _WRITTEN[credentials] = {field: str(directory / f"{field}.pem") for field, _ in credentials}
            for field, value in credentials:
                path = Path(paths[field])
                path.touch(mode=0o600)
                path.write_text(value, encoding="utf-8")
        return paths
