"""The address of the page /elastic on Dask's dashboard."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote, urljoin

if TYPE_CHECKING:
    from distributed import Client


def dashboard_page(client: Client, job: str | None = None) -> str | None:
    """Return the URL of a cluster's /elastic page.

    Parameters
    ----------
    client : distributed.Client
        A client of the cluster.
    job : str, optional
        The job that the page shows first; the newest running one if left out.

    Returns
    -------
    str or None
        The URL; None if the cluster serves no dashboard.
    """
    try:
        link = client.dashboard_link
    except KeyError:
        return None
    return urljoin(link, "elastic" if job is None else f"elastic?job={quote(job)}") if link else None
