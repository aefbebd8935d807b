"""Pages for the Dask dashboard, and metrics for Prometheus."""
