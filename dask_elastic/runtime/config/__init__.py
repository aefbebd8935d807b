"""Options of jobs, workers and the control loop, parsed from the Dask configuration; the TLS policy."""
