"""Counts of blocks and bytes, as vLLM's log and metrics want them."""

from dataclasses import dataclass
from typing import Any

from vllm.config import VllmConfig
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import (
    KVConnectorPromMetrics,
    KVConnectorStats,
    PromMetric,
    PromMetricT,
)

from umbp import sum_stats

OPERATIONS = ("load", "store")
COUNTS = {
    "submitted": "Blocks asked to be moved.",
    "completed": "Blocks moved, or in place already.",
    "failed": "Blocks not moved.",
    "num_bytes": "Bytes of the blocks moved.",
}
METRIC_NAMES = {name: f"vllm:umbp_transfer_{'bytes' if name == 'num_bytes' else name}" for name in COUNTS}


@dataclass
class UmbpStats(KVConnectorStats):
    """Per operation its counts, since the last report."""

    def reset(self) -> None:
        self.data = {}

    def aggregate(self, other: KVConnectorStats) -> "UmbpStats":
        """The sum of both."""
        return UmbpStats(data=sum_stats(self.data, other.data))

    def reduce(self) -> dict[str, int | float]:
        """For the log: load_completed=9, ..."""
        named = ((operation, self.data[operation]) for operation in OPERATIONS if operation in self.data)
        return {f"{operation}_{name}": counts.get(name, 0) for operation, counts in named for name in COUNTS}

    def is_empty(self) -> bool:
        return not self.data


class UmbpPromMetrics(KVConnectorPromMetrics):
    """One counter per count, labelled with the operation."""

    def __init__(
        self,
        vllm_config: VllmConfig,
        metric_types: dict[type[PromMetric], type[PromMetricT]],
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> None:
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        self._counters = {
            name: self._counter_cls(name=METRIC_NAMES[name], documentation=text, labelnames=[*labelnames, "operation"])
            for name, text in COUNTS.items()
        }

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        for operation, counts in (transfer_stats_data or {}).items():
            labels = [*self.per_engine_labelvalues[engine_idx], operation]
            for name, counter in self._counters.items():
                counter.labels(*labels).inc(counts.get(name, 0))  # type: ignore[union-attr]
