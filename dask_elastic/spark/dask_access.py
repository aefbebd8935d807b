"""How Spark's Python workers reach a Dask cluster: its address and credentials as environment variables of Dask."""

from __future__ import annotations

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


def grant_access(environment: dict[str, str], client: Any) -> None:
    """Put the way to a client's cluster into an environment, in place of that to another cluster.

    Parameters
    ----------
    environment : dict of str to str
        The environment of Spark's Python workers.
    client : distributed.Client
        Connected to the cluster.
    """
    found = access(client)
    for variable in (REQUIRED, *VARIABLES.values()):
        environment.pop(variable, None)
    environment.update(found)


def access(client: Any) -> dict[str, str]:
    """Return the environment in which `dask.config` knows a client's cluster.

    Parameters
    ----------
    client : distributed.Client
        Connected to the cluster.

    Returns
    -------
    dict of str to str
        ``DASK_SCHEDULER_ADDRESS``, and with TLS the paths of the credentials.

    Raises
    ------
    SparkFailed
        If the cluster lives in this process alone.

    Notes
    -----
    Credentials that exist in memory only, as those of ``Security.temporary()``, are written to files that only this
    user can read, and that are removed when this process ends. They are of no use to Spark's workers on other hosts;
    clusters of several hosts need credentials in files that all of them have.
    """
    address = client.scheduler.address
    if address.startswith("inproc:"):
        raise SparkFailed(
            f"the Dask cluster at {address} lives in this process, where Spark's workers cannot reach it: start it "
            "with Client(processes=True), or give the client of a cluster elsewhere."
        )
    found = {"DASK_SCHEDULER_ADDRESS": address}
    security = client.security
    if not security.require_encryption and not address.startswith("tls:"):
        return found
    found[REQUIRED] = str(bool(security.require_encryption))
    given = {field: getattr(security, field) for field in VARIABLES}
    return {**found, **_as_files({field: value for field, value in given.items() if value is not None})}


def _as_files(credentials: dict[str, str]) -> dict[str, str]:
    directory: Path | None = None
    found = {}
    for field, value in credentials.items():
        if "\n" in value:
            directory = directory or private_directory("tls")
            path = directory / f"{field}.pem"
            path.touch(mode=0o600)
            path.write_text(value, encoding="utf-8")
            value = str(path)
        elif field != "tls_ciphers":
            value = str(Path(value).absolute())
        found[VARIABLES[field]] = value
    return found
