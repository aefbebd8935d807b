"""The command line ``dask elastic``: runs, shows and changes jobs."""
