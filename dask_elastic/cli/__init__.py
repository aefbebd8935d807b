"""The command line: ``dask elastic run``, ``status``, ``decisions``, ``stop``, ``demo`` and ``plan``."""
