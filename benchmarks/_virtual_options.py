"""Options of a job on a virtual clock, and of its cluster."""

from __future__ import annotations

from dataclasses import dataclass, field

from _network import Costs


@dataclass(frozen=True)
class Options:
    """Options of the job, as those of `submit`; the defaults are those of the configuration.

    Without a `rate`, in rows per second, the `instances` of the source read as fast as they can.
    """

    nodes: int = 4
    threads: int = 4
    executors: int = 4
    shards: int = 256
    service: float = 1e-3
    service_deviation: float = 0.0
    latency_target: float = 0.2
    inbox_time: float = 0.005
    queue_time: float = 0.2
    channel_window: int = 32 * 2**20
    balance_threshold: float = 1.05
    balance_interval: float = 0.5
    report_interval: float = 0.5
    control_period: float = 1.0
    elastic: bool = True
    instances: int = 1
    batch_rows: int = 256
    rate: float | None = None
    costs: Costs = field(default_factory=Costs)

    @property
    def cores(self) -> int:
        """The number of cores."""
        return self.nodes * self.threads
