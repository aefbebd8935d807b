"""The state of windowed computes whose logic is a function: rows that wait for their instances to close."""
