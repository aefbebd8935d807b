"""Modules of the Dask scheduler: the coordinator of jobs, the driver of the control loop, commits of epochs."""
