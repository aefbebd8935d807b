"""The demonstration: a static and an elastic job process the same flights while the load shifts."""
