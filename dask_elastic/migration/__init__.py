"""Migration protocols as tables: `handle(event) -> action`, without I/O."""
