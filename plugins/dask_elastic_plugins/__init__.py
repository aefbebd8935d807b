"""How Dask hosts dask_elastic: a plugin for the scheduler, one for the workers, and what registers them."""
