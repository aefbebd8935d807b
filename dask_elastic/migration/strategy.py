"""Strategies of shard moves between nodes."""

from __future__ import annotations

from typing import Literal, TypeAlias

Strategy: TypeAlias = Literal["labelled", "instant", "disruptive"]
"""How the shards of a component move between nodes; within a node they always move by labels."""
