"""The driver that carries an executor's instructions out on Dask: threads, channels, jobs."""
