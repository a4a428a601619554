"""`UmbpConnector`: vLLM's connector interface on the state machines in `umbp._umbp`. It only translates.

`KVTransferConfig(kv_connector="UmbpConnector", kv_connector_module_path="umbp.vllm",
kv_role="kv_both", kv_load_failure_policy="recompute", kv_connector_extra_config={...})`; the options are those of
`umbp.vllm.options.ConnectorOptions`.
"""

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorHandshakeMetadata,
    KVConnectorMetadata,
    KVConnectorRole,
    KVConnectorTransferResults,
    SupportsHMA,
)

from umbp.vllm.groups import unsupported
from umbp.vllm.identity import check_hashes
from umbp.vllm.messages import UmbpHandshake, UmbpMetadata, UmbpWorkerMetadata
from umbp.vllm.options import ConnectorOptions, check_policy
from umbp.vllm.scheduler import SchedulerSide
from umbp.vllm.stats import UmbpPromMetrics, UmbpStats
from umbp.vllm.worker import WorkerSide

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.distributed.kv_events import KVCacheEvent
    from vllm.distributed.kv_transfer.kv_connector.v1.metrics import PromMetric, PromMetricT
    from vllm.forward_context import ForwardContext
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.request import Request

__all__ = ["UmbpConnector"]

logger = logging.getLogger("vllm.umbp")


class UmbpConnector(KVConnectorBase_V1, SupportsHMA):
    """One object for the scheduler, one for each worker."""

    def __init__(self, vllm_config: "VllmConfig", role: KVConnectorRole, kv_cache_config: "KVCacheConfig") -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        transfer = vllm_config.kv_transfer_config
        assert transfer is not None
        options = ConnectorOptions.read(transfer.kv_connector_extra_config)
        check_policy(transfer.kv_load_failure_policy, options.allow_load_failure_policy)
        check_hashes(vllm_config.cache_config.prefix_caching_hash_algo)
        if vllm_config.parallel_config.pipeline_parallel_size > 1:
            raise ValueError("pipeline_parallel_size is above 1: UmbpConnector does not know pipeline parallelism yet")
        self._scheduler_side: SchedulerSide | None = None
        self._worker_side: WorkerSide | None = None
        reason = unsupported(kv_cache_config)
        if role == KVConnectorRole.SCHEDULER:
            if reason is not None:
                logger.warning("nothing is loaded or stored: %s", reason)
            self._scheduler_side = SchedulerSide(vllm_config, kv_cache_config, options, enabled=reason is None)
        else:
            self._worker_side = WorkerSide(vllm_config, kv_cache_config, options)

    # Worker.

    @property
    def _worker(self) -> WorkerSide:
        assert self._worker_side is not None, "a worker's call to the scheduler's connector"
        return self._worker_side

    @property
    def descriptor(self) -> dict[str, str]:
        """What must match for this worker's bytes to mean the same."""
        return self._worker.descriptor

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        self._worker.register(kv_caches)

    def get_handshake_metadata(self) -> UmbpHandshake | None:
        return self._worker.handshake() if self._worker_side is not None else None

    def handle_preemptions(self, kv_connector_metadata: KVConnectorMetadata) -> None:
        assert isinstance(kv_connector_metadata, UmbpMetadata)
        self._worker.preempt(kv_connector_metadata)

    def bind_connector_metadata(self, connector_metadata: KVConnectorMetadata) -> None:
        super().bind_connector_metadata(connector_metadata)
        self._worker.begin_step()

    def clear_connector_metadata(self) -> None:
        # A step without a forward pass does not call wait_for_save.
        if self._worker_side is not None and self.has_connector_metadata():
            self.wait_for_save()
        super().clear_connector_metadata()

    def start_load_kv(self, forward_context: "ForwardContext", **kwargs: Any) -> None:
        self._worker.load(self._metadata())

    def wait_for_layer_load(self, layer_name: str) -> None:
        self._worker.wait_for_layer()

    def save_kv_layer(self, layer_name: str, kv_layer: torch.Tensor, attn_metadata: Any, **kwargs: Any) -> None:
        """Blocks are stored whole, after the step."""

    def wait_for_save(self) -> None:
        self._worker.store(self._metadata())

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        return None, self._worker.finished() or None

    def get_transfer_results(self, finished_req_ids: set[str]) -> KVConnectorTransferResults:
        _, received = self.get_finished(finished_req_ids)
        return KVConnectorTransferResults(
            finished_recving=received or set(), failed_recving=self._worker.failed_requests()
        )

    def get_block_ids_with_load_errors(self) -> set[int]:
        return self._worker.load_errors()

    def build_connector_worker_meta(self) -> UmbpWorkerMetadata | None:
        return self._worker.report()

    def get_kv_connector_stats(self) -> UmbpStats | None:
        return self._worker.stats() if self._worker_side is not None else None

    # Scheduler.

    @property
    def _scheduler(self) -> SchedulerSide:
        assert self._scheduler_side is not None, "a scheduler's call to a worker's connector"
        return self._scheduler_side

    def set_xfer_handshake_metadata(self, metadata: dict[int, KVConnectorHandshakeMetadata]) -> None:
        if self._scheduler_side is not None:
            self._scheduler.bind([report for report in metadata.values() if isinstance(report, UmbpHandshake)])

    def bind_gpu_block_pool(self, gpu_block_pool: Any) -> None:
        self._scheduler.bind_pool(gpu_block_pool)

    def bind_kv_cache_manager(self, kv_cache_manager: Any) -> None:
        super().bind_kv_cache_manager(kv_cache_manager)
        self._scheduler.bind_manager(kv_cache_manager)

    def get_num_new_matched_tokens(self, request: "Request", num_computed_tokens: int) -> tuple[int | None, bool]:
        return self._scheduler.matched(request, num_computed_tokens)

    def update_state_after_alloc(self, request: "Request", blocks: "KVCacheBlocks", num_external_tokens: int) -> None:
        self._scheduler.allocated(request, blocks, num_external_tokens)

    def build_connector_meta(self, scheduler_output: "SchedulerOutput") -> UmbpMetadata:
        return self._scheduler.step(scheduler_output)

    def update_connector_output(self, connector_output: Any) -> None:
        self._scheduler.update(connector_output)

    def take_events(self) -> Iterable["KVCacheEvent"]:
        return self._scheduler.take_events()

    def request_finished(self, request: "Request", block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        return self.request_finished_all_groups(request, (block_ids,))

    def request_finished_all_groups(
        self, request: "Request", block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        self._scheduler.finished(request)
        return False, None

    def register_finished_partial_tail(
        self,
        request: "Request",
        block_ids: tuple[list[int], ...],
        partial_tail_offloads: list[tuple[int, int, int]],
    ) -> bool:
        self._scheduler.partial_tail(request, block_ids, partial_tail_offloads)
        return False  # the tail is pinned; the request need not wait

    def has_pending_push_work(self) -> bool:
        return self._scheduler.pending()

    def reset_cache(self) -> bool | None:
        return self._scheduler.reset() if self._scheduler_side is not None else None

    # Both.

    @property
    def requires_kv_delivery(self) -> bool:
        """A block that is not stored is a later miss, no more."""
        return False

    def shutdown(self) -> None:
        if self._scheduler_side is not None:
            self._scheduler_side.close()
        if self._worker_side is not None:
            self._worker_side.close()

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> UmbpStats:
        return UmbpStats(data=data or {})

    @classmethod
    def build_prom_metrics(
        cls,
        vllm_config: "VllmConfig",
        metric_types: "dict[type[PromMetric], type[PromMetricT]]",
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> UmbpPromMetrics:
        return UmbpPromMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)

    def _metadata(self) -> UmbpMetadata:
        metadata = self._get_connector_metadata()
        assert isinstance(metadata, UmbpMetadata)
        return metadata
