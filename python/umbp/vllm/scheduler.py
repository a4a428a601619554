"""The scheduler's side of `UmbpConnector`."""

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from umbp import Scheduler
from umbp.vllm.groups import groups_of
from umbp.vllm.identity import Place, reports_expected
from umbp.vllm.messages import UmbpHandshake, UmbpMetadata, UmbpWorkerMetadata, removed, stored
from umbp.vllm.options import ConnectorOptions

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.distributed.kv_events import KVCacheEvent
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.outputs import KVConnectorOutput
    from vllm.v1.request import Request

logger = logging.getLogger("vllm.umbp")


@dataclass
class Told:
    """What the state machine knows of a request."""

    request: "Request"
    prompt_tokens: int
    tokens: int = 0
    hashes: int = 0
    last_hash: bytes | None = None

    def goes_on(self, request: "Request") -> bool:
        """It has grown since, at most. A session that takes further input has another prompt, and may have dropped
        tokens, with their hashes, that were never computed."""
        hashes = request.block_hashes
        return (
            request is self.request
            and request.num_prompt_tokens == self.prompt_tokens
            and request.num_tokens >= self.tokens
            and (self.hashes == 0 or (len(hashes) >= self.hashes and bytes(hashes[self.hashes - 1]) == self.last_hash))
        )


class SchedulerSide:
    """Until workers have told their namespace it looks nothing up and stores nothing."""

    def __init__(
        self, vllm_config: "VllmConfig", kv_cache_config: "KVCacheConfig", options: ConnectorOptions, enabled: bool
    ) -> None:
        transfer, speculative = vllm_config.kv_transfer_config, vllm_config.speculative_config
        assert transfer is not None
        events = vllm_config.kv_events_config
        self._with_events = bool(events and events.enable_kv_cache_events)
        self._options = options
        self._enabled = enabled
        self._reports_expected = reports_expected(vllm_config)
        groups = groups_of(kv_cache_config)
        # Blocks of full attention stay a request's own until it ends: tables need not be asked for.
        self._frees_blocks = any(group.kind != "full" for group in groups)
        self._pool: Any = None
        self._manager: Any = None
        self._events: list[KVCacheEvent] = []
        self._requests: dict[str, Request] = {}
        self._told: dict[str, Told] = {}
        self._core = Scheduler(
            [
                (group.kind if enabled else "scratch", group.block_size, group.sliding_window, group.mode, group.eagle)
                for group in groups
            ],
            Place.of(vllm_config, kv_cache_config),
            num_workers=vllm_config.parallel_config.world_size,
            prefix_match_unit=vllm_config.cache_config.prefix_match_unit,
            retention_interval=kv_cache_config.prefix_cache_retention_interval,
            load_async=options.load_async,
            lookup_async=options.lookup_async,
            save_decode_cache=options.save_decode_cache,
            stores=transfer.kv_role != "kv_consumer",
            events=self._with_events,
            eagle=bool(speculative is not None and speculative.use_eagle_block_drop()),
            # A step is planned before the one before it is reported.
            unreported_steps=vllm_config.max_concurrent_batches,
        )
        if self._core.load_async and not options.load_async:
            logger.warning("load_async=false is not possible with several KV cache groups: loads are asynchronous")

    def bind(self, reports: Sequence[UmbpHandshake]) -> None:
        """What the workers' bytes mean. They must agree, and none may be missing: a block is there when all have
        stored their part."""
        if not self._enabled:
            return
        if len(reports) != self._reports_expected:
            logger.warning(
                "nothing is loaded or stored: %d of %d workers have registered KV caches; the others' logs say why",
                len(reports),
                self._reports_expected,
            )
            return
        first = reports[0]
        for other in reports[1:]:
            names = [name for name in first.descriptor if other.descriptor.get(name) != first.descriptor[name]]
            if names:
                raise ValueError(f"workers do not agree on {', '.join(names)}: their blocks cannot be shared")
        session = self._options.session(first.socket)
        self._core.bind(
            session.socket,
            first.descriptor,
            hold_ms=session.hold_ms,
            timeout_ms=session.timeout_ms,
        )
        self._look()

    def bind_pool(self, pool: Any) -> None:
        """Stores pin their blocks there."""
        self._pool = pool

    def bind_manager(self, manager: Any) -> None:
        """It knows what the engine's own cache holds."""
        self._manager = manager

    def matched(self, request: "Request", local_tokens: int) -> tuple[int | None, bool]:
        """Tokens that the store has beyond the local ones (none = ask again), and whether they come asynchronously."""
        self._look()
        self._tell(request)
        return self._core.matched(request.request_id, local_tokens, self._locally_cached)

    def allocated(self, request: "Request", blocks: "KVCacheBlocks", external_tokens: int) -> None:
        """The request's whole block table; `external_tokens` of it are to be loaded."""
        self._tell(request)
        self._requests[request.request_id] = request
        self._core.allocated(request.request_id, list(blocks.get_block_ids()), external_tokens)
        self._move_pins()

    def step(self, output: "SchedulerOutput") -> UmbpMetadata:
        """Plans what workers do in this step."""
        cached, state = output.scheduled_cached_reqs, output.kv_connector_block_state
        for request_id in output.num_scheduled_tokens:
            if (request := self._requests.get(request_id)) is not None:
                self._tell(request)
        new_requests = [
            (new.req_id, new.num_computed_tokens, output.num_scheduled_tokens[new.req_id], list(new.block_ids))
            for new in output.scheduled_new_reqs
        ]
        cached_requests = [
            (
                request_id,
                cached.num_computed_tokens[index],
                output.num_scheduled_tokens[request_id],
                None if (blocks := cached.new_block_ids[index]) is None else list(blocks),
                request_id in cached.resumed_req_ids,
            )
            for index, request_id in enumerate(cached.req_ids)
        ]
        tables = []
        if state is not None and self._frees_blocks:
            named = ((request_id, state.get_block_ids(request_id)) for request_id in output.num_scheduled_tokens)
            tables = [(request_id, list(table)) for request_id, table in named if table is not None]
        plan = self._core.step(
            new_requests,
            cached_requests,
            sorted(output.finished_req_ids),
            sorted(output.preempted_req_ids or ()),
            tables,
            [] if state is None else list(state.boundary_state_offloads.items()),
        )
        for request_id in output.finished_req_ids:
            self._forget(request_id)
        self._move_pins()
        return UmbpMetadata(plan)

    def update(self, output: "KVConnectorOutput") -> None:
        """What workers report after a step."""
        report = output.kv_connector_worker_meta or UmbpWorkerMetadata()
        assert isinstance(report, UmbpWorkerMetadata)
        if report.removed:
            self._core.forget_published(sorted(report.removed))
            self._events += [removed(*block) for block in sorted(report.removed)]
        completed = [(event, workers, sorted(failed)) for event, (workers, failed) in report.store_events.items()]
        self._core.update(completed, time.monotonic())
        if output.failed_recving or output.invalid_block_ids:
            self._core.loads_failed(sorted(output.failed_recving), sorted(output.invalid_block_ids))
        self._move_pins()

    def take_events(self) -> "list[KVCacheEvent]":
        """News of the store for whoever routes requests."""
        if self._with_events:
            new, gone = self._core.take_events(time.monotonic())
            self._events += [stored(*event) for event in new]
            self._events += [removed(*event) for event in gone]
        events, self._events = self._events, []
        return events

    def finished(self, request: "Request") -> None:
        """The request is over; what it stores goes on."""
        self._core.finished(request.request_id)
        self._forget(request.request_id)

    def partial_tail(
        self, request: "Request", block_ids: Sequence[list[int]], offloads: list[tuple[int, int, int]]
    ) -> None:
        """Pins what a finished request leaves behind of its last block."""
        self._tell(request)
        in_flight = getattr(request, "num_in_flight_tokens", 0)
        self._core.partial_tail(request.request_id, list(block_ids), offloads, request.num_computed_tokens, in_flight)
        self._move_pins()

    def pending(self) -> bool:
        """The engine is to step on, for stores that are under way."""
        return self._core.pending()

    def reset(self) -> bool:
        """Forgets the namespace's blocks; false while some are in use."""
        return self._core.reset()

    def close(self) -> None:
        self._core.close()

    def _tell(self, request: "Request") -> None:
        """Hashes, and tokens where events want them, that are new since the last time."""
        told = self._told.get(request.request_id)
        if told is None or not told.goes_on(request):
            told = Told(request, request.num_prompt_tokens)
        new_hashes = [bytes(block_hash) for block_hash in request.block_hashes[told.hashes :]]
        self._core.tell(
            request.request_id,
            told.tokens == 0,
            request.num_prompt_tokens,
            request.num_tokens - told.tokens,
            list(request.all_token_ids[told.tokens : request.num_tokens]) if self._with_events else [],
            new_hashes,
        )
        told.hashes += len(new_hashes)
        told.last_hash = new_hashes[-1] if new_hashes else told.last_hash
        told.tokens = request.num_tokens
        self._told[request.request_id] = told

    def _forget(self, request_id: str) -> None:
        self._requests.pop(request_id, None)
        self._told.pop(request_id, None)

    def _locally_cached(self, group: int, block_hash: bytes) -> bool:
        """Whether the engine's own cache has the block."""
        if self._manager is None:
            return self._pool is not None and bool(self._pool.get_cached_block(block_hash, [group]))
        pool = self._manager.coordinator.single_type_managers[group].block_pool
        return bool(pool.get_cached_block(block_hash, [group]))

    def _move_pins(self) -> None:
        for is_pin, block_ids in self._core.take_pins():
            if self._pool is None:
                continue
            blocks = [self._pool.blocks[block_id] for block_id in block_ids]
            if is_pin:
                self._pool.touch(blocks)
            else:
                self._pool.free_blocks(blocks)

    def _look(self) -> None:
        if (notice := self._core.notice()) is not None:
            logger.log(notice[0], "%s", notice[1])
