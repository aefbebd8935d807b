"""Pages for the Dask dashboard, and figures of the papers drawn again."""
