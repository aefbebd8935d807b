"""Drivers of executors, written as generators of steps: the runtime runs them on threads, the simulator on fibers."""
