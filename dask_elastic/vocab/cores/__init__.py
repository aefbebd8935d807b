"""Cores of executors in decisions: changes of them, and those that the model asks for."""
