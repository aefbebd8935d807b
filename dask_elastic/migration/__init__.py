"""How state changes its place: protocols as tables, `handle(event) -> action`, without I/O."""
