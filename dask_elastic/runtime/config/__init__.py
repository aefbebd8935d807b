"""Options of jobs, workers and the control loop, parsed in one way from the Dask configuration; the TLS policy."""
