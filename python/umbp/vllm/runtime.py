"""umbpd as the runtime of vLLM's own UMBPStoreConnector (vLLM 0.33 and later).

Name this module as the connector's: `kv_connector="UMBPStoreConnector"`,
`kv_connector_module_path="umbp.vllm.runtime"`. Of `kv_connector_extra_config` it reads socket,
hold_ms, timeout_ms, num_copy_threads and allow_load_failure_policy; the rest is the connector's.

A daemon that is absent, hung or restarted is misses and failed blocks, and nothing here fails an engine's step. A job
is waited for until `timeout_ms` have passed since it began; then it is ended early, and only what cannot be cut short
is waited for still: a piece of a copy in memory, or the answer to a Commit, which has `timeout_ms` of its own.
"""

import contextlib
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from vllm.distributed.kv_transfer.kv_connector.v1.umbp import (
    BlockTransferPlan,
    KVLayoutDescriptor,
    RankTopology,
    TransferJobState,
    UMBPRuntimeConfig,
    UMBPRuntimeFactory,
)
from vllm.distributed.kv_transfer.kv_connector.v1.umbp import UMBPStoreConnector as EngineConnector
from vllm.distributed.kv_transfer.kv_connector.v1.umbp.data import BlockLoadBatch, BlockStoreBatch

from umbp import JobResult, Layout
from umbp.vllm.chains import Chains
from umbp.vllm.identity import check_hashes
from umbp.vllm.options import check_policy, reference_allows_policy, reference_session
from umbp.vllm.session import Session, SessionOptions, reference_descriptor
from umbp.vllm.staging import Result, Staging, Transfers

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
    from vllm.v1.kv_cache_interface import KVCacheConfig

__all__ = ["SchedulerHandle", "UMBPStoreConnector", "UmbpdRuntime", "WorkerHandle", "register", "settle"]

logger = logging.getLogger("vllm.umbp")

END_ROUND_MS = 1000
"""A job that was ended early is awaited in rounds of this length, with a word in the log after each."""
GOOD = frozenset({"done", "present"})
"""Results of a key whose block is where it should be."""

Batch = Sequence[BlockTransferPlan]


@dataclass
class _Open:
    state: TransferJobState
    job: int
    wait_until: float
    """Who waits for it waits no longer than until then, by the monotonic clock."""


class SchedulerHandle:
    """Lookups for the connector's scheduler side."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def lookup(self, keys: Sequence[str]) -> Sequence[bool]:
        """One answer per key; without a daemon, false. Hits are held until the worker's load, or `hold_ms`."""
        self._session.look()
        return self._session.client.lookup(keys, self._session.options.hold_ms)

    def clear(self) -> bool:
        """Forgets the namespace's blocks; false when the daemon is away or some are in use."""
        try:
            _, pinned = self._session.client.clear()
        except RuntimeError as error:
            logger.warning("nothing is cleared: %s", error)
            return False
        return pinned == 0

    def close(self) -> None:
        self._session.close()


class WorkerHandle:
    """Loads and stores for the connector's worker side."""

    def __init__(self, session: Session, layout: KVLayoutDescriptor, staged: bool = False) -> None:
        """`staged`: through host buffers, as for tensors of a device."""
        self._session = session
        self._client = session.client
        self._transfers: Transfers = session.client
        self._staged = staged
        self._descriptor = layout
        self._layout: Layout | None = None
        self._tensors: list[torch.Tensor] = []  # kept as long as a copy thread may touch them
        self._off = False
        self._jobs: dict[int, _Open] = {}
        self._chains = Chains()

    def register_buffers(self, kv_caches: dict[str, torch.Tensor]) -> None:
        """Registers each allocation once, and where blocks lie in it. Without memory for it, every block fails."""
        self._tensors = list(kv_caches.values())
        regions = self._descriptor.regions
        layout = Layout(
            [(r.layer_name, r.group_id, r.block_stride, r.block_bytes, r.object_offset) for r in regions],
            {name: (t.data_ptr(), t.stride(0) * t.element_size()) for name, t in kv_caches.items()},
        )
        if self._staged or any(tensor.device.type != "cpu" for tensor in kv_caches.values()):
            if not regions:
                raise ValueError("the KV caches are on a device, and the layout names no region of them")
            groups = sorted({region.group_id for region in regions})
            try:
                self._transfers = Staging(self._client, layout, kv_caches, groups)
            except RuntimeError as error:  # a device's, or no memory to be pinned
                logger.warning("nothing is loaded or stored: %s", error)
                self._off = True
        else:
            storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in kv_caches.values()}
            for address, length in storages.items():
                self._client.register(address, length)
        self._layout = layout if regions else None

    def load_blocks(self, plans: Batch) -> TransferJobState | None:
        """Whole blocks by number; none = ask in the plain form."""
        columns = self._columns(plans)
        if columns is None or self._layout is None:
            return None
        keys, block_ids, groups, request = columns
        self._chains.restart(request, keys, groups)
        layout = self._layout
        return self._begin(plans, lambda: self._transfers.load_blocks(layout, keys, block_ids, groups))

    def store_blocks(self, plans: Batch) -> TransferJobState | None:
        """Whole blocks by number; none = ask in the plain form."""
        columns = self._columns(plans)
        if columns is None or self._layout is None:
            return None
        keys, block_ids, groups, request = columns
        parents, depths = self._chains.extend(request, keys, groups)
        layout = self._layout
        return self._begin(
            plans, lambda: self._transfers.store_blocks(layout, keys, block_ids, groups, parents, depths)
        )

    def load(self, plans: Batch) -> TransferJobState:
        """Begins to load the plans' ranges, which are in memory of the host."""
        keys, ranges = _ranges(plans)
        if self._on_device:
            return _failed(plans, "ranges in a device's memory")
        return self._begin(plans, lambda: self._client.load(keys, ranges))

    def store(self, plans: Batch) -> TransferJobState:
        """Begins to store the plans' ranges, which are in memory of the host."""
        keys, ranges = _ranges(plans)
        if self._on_device:
            return _failed(plans, "ranges in a device's memory")
        groups = [plan.group_id or 0 for plan in plans]
        request = next((plan.request_id for plan in plans if plan.request_id), "")
        parents, depths = self._chains.extend(request, keys, groups)
        return self._begin(plans, lambda: self._client.store(keys, ranges, parents, depths))

    def poll(self, job: TransferJobState) -> TransferJobState | None:
        """The job if it has ended."""
        return self._take(job, 0)

    def wait(self, job: TransferJobState) -> TransferJobState:
        """Waits until `timeout_ms` have passed since it began, then ends it early: what is not done has failed."""
        entry = self._jobs.get(id(job))
        if entry is None:
            return job
        left_ms = max(0, round((entry.wait_until - time.monotonic()) * 1000))
        return self._take(job, left_ms) or self.cancel(job)

    def cancel(self, job: TransferJobState) -> TransferJobState:
        """Ends the job, and returns when no thread touches its memory, however long a copy under way may take."""
        while (entry := self._jobs.get(id(job))) is not None:
            with contextlib.suppress(RuntimeError):  # the client is closed, as `_take` will find
                self._transfers.cancel(entry.job)
            if self._take(job, END_ROUND_MS) is None:
                logger.warning("a job that was ended early has a copy under way still; waiting on")
        return job

    def publish(self, job: TransferJobState) -> None:
        """Stored blocks are visible already; from here on their end is news for `take_evicted_keys`."""
        self._client.publish(list(job.completed_keys))

    def take_evicted_keys(self) -> Sequence[str]:
        """Keys that this worker published and that no tier has any more, as far as is known: never waits."""
        self._session.look()
        return self._client.take_evicted()

    def close(self) -> None:
        """Ends all jobs; when it returns, no thread touches engine memory."""
        self._session.close()
        self._jobs.clear()
        self._tensors.clear()

    @property
    def _on_device(self) -> bool:
        return self._transfers is not self._client

    def _columns(self, plans: Batch) -> tuple[list[str], list[int], list[int], str] | None:
        if isinstance(plans, BlockLoadBatch | BlockStoreBatch):
            return plans.keys, plans.block_ids, plans.group_ids, plans.request_id
        groups = [plan.group_id for plan in plans if plan.group_id is not None]
        if len(groups) < len(plans) or any(plan.ranges for plan in plans):
            return None
        request = next((plan.request_id for plan in plans if plan.request_id), "")
        return [plan.key for plan in plans], [plan.block_id for plan in plans], groups, request

    def _begin(self, plans: Batch, ask: Callable[[], int]) -> TransferJobState:
        wait_until = time.monotonic() + self._session.options.timeout_ms / 1000
        if self._off:
            return _failed(plans, "no memory to move blocks through")
        try:
            job = ask()
        except RuntimeError as error:  # the client is closed
            return _failed(plans, str(error))
        state = _started(plans)
        self._jobs[id(state)] = _Open(state, job, wait_until)
        return state

    def _take(self, state: TransferJobState, timeout_ms: int) -> TransferJobState | None:
        entry = self._jobs.get(id(state))
        if entry is None:
            return state
        result: Result | JobResult | None
        try:
            result = self._transfers.wait(entry.job, timeout_ms)
        except RuntimeError as error:
            # The client is closed, by now to its end, so that nothing of it is copied any more.
            self._client.close()
            result = Result(["disconnected"] * len(state.keys), [0] * len(state.keys), str(error))
        if result is None:
            return None
        del self._jobs[id(state)]
        settle(state, result)
        return state


def settle(state: TransferJobState, result: JobResult | Result) -> None:
    """Writes a job's results into its state: completed or failed, key by key."""
    named = list(zip(state.keys, result.results, strict=True))
    state.plan_bytes = tuple(result.bytes)
    failed = {key for key, word in named if word not in GOOD}
    completed = [key for key, word in named if word in GOOD and key not in failed]
    if completed or not failed:
        state.complete(completed)
    if failed:
        words = sorted({word for _, word in named if word not in GOOD})
        state.fail(sorted(failed), result.error or ", ".join(words))
    if "cancelled" in result.results:
        state.cancel()


def _started(plans: Batch) -> TransferJobState:
    state = TransferJobState(plans if isinstance(plans, BlockLoadBatch | BlockStoreBatch) else tuple(plans))
    state.start()
    return state


def _failed(plans: Batch, why: str) -> TransferJobState:
    state = _started(plans)
    state.fail([*state.keys], why)
    return state


def _ranges(plans: Iterable[BlockTransferPlan]) -> tuple[list[str], list[list[tuple[int, int]]]]:
    """Keys, and each block's (address, length) in the order of its bytes."""
    keys, ranges = [], []
    for plan in plans:
        keys.append(plan.key)
        ordered = sorted(plan.ranges, key=lambda item: item.object_offset)
        ranges.append([(item.base_address, item.length) for item in ordered])
    return keys, ranges


class UmbpdRuntime:
    """Makes the handles of one process."""

    def __init__(self, options: SessionOptions) -> None:
        self._options = options

    def create_scheduler_handle(
        self, namespace: str, topology: RankTopology, layout: KVLayoutDescriptor
    ) -> SchedulerHandle:
        del layout
        return SchedulerHandle(self._session("scheduler", namespace, topology))

    def create_worker_handle(self, namespace: str, topology: RankTopology, layout: KVLayoutDescriptor) -> WorkerHandle:
        return WorkerHandle(self._session("worker", namespace, topology), layout)

    def _session(self, role: str, namespace: str, topology: RankTopology) -> Session:
        sizes = (topology.tp_size, topology.pcp_size, topology.dcp_size, topology.pp_size)
        return Session(role, reference_descriptor(namespace, *sizes), namespace, self._options)


class UMBPStoreConnector(EngineConnector):
    """The engine's own, begun only where a stored block can be found again, and where a failed load is computed."""

    def __init__(self, vllm_config: "VllmConfig", role: "KVConnectorRole", kv_cache_config: "KVCacheConfig") -> None:
        transfer = vllm_config.kv_transfer_config
        assert transfer is not None
        extra = transfer.kv_connector_extra_config
        check_policy(transfer.kv_load_failure_policy, reference_allows_policy(extra))
        check_hashes(vllm_config.cache_config.prefix_caching_hash_algo)
        super().__init__(vllm_config, role, kv_cache_config)


def register() -> None:
    """Gives the runtime to vLLM; importing this module does so."""
    if "embedded" not in UMBPRuntimeFactory._builders:
        UMBPRuntimeFactory.register("embedded", _build)


def _build(config: UMBPRuntimeConfig) -> UmbpdRuntime:
    return UmbpdRuntime(reference_session(config.options))


register()
