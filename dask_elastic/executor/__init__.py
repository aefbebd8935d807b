"""One elastic executor, without I/O: its receiver, routing, tasks, moves, recovery and measures."""
