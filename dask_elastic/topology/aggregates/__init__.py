"""What aggregates run on: state columns, grouped rows, hashes, and the built-in aggregates themselves.

Users import aggregates from `dask_elastic.topology.aggregate`.
"""
