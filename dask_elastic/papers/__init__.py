"""Workloads, experiments and figures that reproduce the papers' results; no running job uses them.

Drawing a figure needs the extra ``papers``: ``pip install 'dask-elastic[papers]'``.
"""
