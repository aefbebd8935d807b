"""What runs in each Dask worker: a node, its parts of jobs, and the drivers of sources, executors and sinks."""
