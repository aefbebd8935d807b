"""How users define windows over streams, and what results of windows look like; the values are in `windowing`."""
