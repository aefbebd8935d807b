"""How Dask hosts dask_elastic: a scheduler plugin, a worker plugin, and functions that register them."""
