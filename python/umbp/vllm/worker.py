"""The worker's side of `UmbpConnector`."""

import logging
import weakref
from typing import TYPE_CHECKING, Any

import torch

from umbp import Embedded, Layout, Worker, program
from umbp.vllm import identity
from umbp.vllm.groups import groups_of
from umbp.vllm.messages import UmbpHandshake, UmbpMetadata, UmbpWorkerMetadata
from umbp.vllm.options import ConnectorOptions
from umbp.vllm.session import Session
from umbp.vllm.staging import Staging
from umbp.vllm.stats import UmbpStats

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig

logger = logging.getLogger("vllm.umbp")

Layer = tuple[str, int, int, int, int]
"""Name, group, block stride, block bytes, object offset."""


def join(options: ConnectorOptions) -> tuple[str, Embedded | None]:
    """Where the daemon is; in mode "embedded", this process's part in it."""
    if options.mode != "embedded":
        return options.session().socket, None
    embedded = Embedded(options.config, options.socket, program("umbpd"))
    logger.info("%s", embedded.about)
    return str(embedded.socket), embedded


def layers_of(kv_cache_config: "KVCacheConfig") -> list[Layer]:
    """The regions of all layers that belong to a group which can be restored, in the order of the allocation."""
    kept = {
        name: (group_id, spec)
        for group_id, group in enumerate(kv_cache_config.kv_cache_groups)
        if groups_of(kv_cache_config)[group_id].kind != "scratch"
        for name, spec in identity.layer_specs(group).items()
    }
    layers: list[Layer] = []
    offset = 0
    for tensor in kv_cache_config.kv_cache_tensors:
        for name in tensor.layers:
            if name in kept:
                group_id, spec = kept[name]
                layers.append((name, group_id, tensor.block_stride, spec.page_size_bytes, offset))
                offset += spec.page_size_bytes
    return layers


STAGED = "staged"
"""Name of the namespace in text keys that only a staged worker uses, within itself."""


class WorkerSide:
    """Until KV caches are registered it moves nothing."""

    staged = False
    """Through host buffers also where the client could copy itself, for tests."""

    def __init__(self, vllm_config: "VllmConfig", kv_cache_config: "KVCacheConfig", options: ConnectorOptions) -> None:
        self._vllm_config = vllm_config
        self._kv_cache_config = kv_cache_config
        self._options = options
        events = vllm_config.kv_events_config
        self._with_events = bool(events and events.enable_kv_cache_events)
        self._socket, self._embedded = join(options)
        self.descriptor: dict[str, str] = {}
        self._core: Worker | None = None
        self._tensors: list[torch.Tensor] = []
        self._stored = False
        self._session: Session | None = None

    def register(self, kv_caches: dict[str, torch.Tensor]) -> None:
        """Begins: attaches, and registers each allocation once. What it cannot make sense of it leaves alone.

        Its scheduler then misses its report, and the whole engine goes without.
        """
        layers = layers_of(self._kv_cache_config)
        odd = [name for name, *_ in layers if not isinstance(kv_caches.get(name), torch.Tensor)]
        if odd or not layers:
            self._go_without(f"no single tensor for {odd}" if odd else "no KV to keep")
            return
        tensors = {name: kv_caches[name] for name, *_ in layers}
        named = identity.descriptor(self._vllm_config, self._kv_cache_config, tensors, self._options.key_namespace)
        try:
            self._core = self._begin(layers, tensors, named)
        except (ValueError, RuntimeError) as error:  # RuntimeError: a device's, or no memory to be pinned
            if self._session is not None:
                self._session.close()
                self._session = None
            self._go_without(str(error))
            return
        self.descriptor = named
        self._tensors = list(tensors.values())  # kept as long as a copy thread may touch them
        # Also when the interpreter ends, before the engine's memory goes.
        weakref.finalize(self, self._core.close)
        self._look()

    def _go_without(self, reason: str) -> None:
        if not identity.reports_tell_workers_apart(self._vllm_config):
            # Its report would not be missed: the scheduler would wait for its part of each block for ever.
            raise ValueError(f"{reason}: with prefill context parallelism the engine cannot go without one worker")
        logger.warning("nothing is loaded or stored: %s", reason)

    def _begin(self, layers: list[Layer], tensors: dict[str, torch.Tensor], named: dict[str, str]) -> Worker:
        config, session = self._kv_cache_config, self._options.session(self._socket)
        layout = Layout(layers, {name: (t.data_ptr(), t.stride(0) * t.element_size()) for name, t in tensors.items()})
        how: dict[str, Any] = {
            "place": identity.Place.of(self._vllm_config, config),
            "report_failed_requests": len(config.kv_cache_groups) > 1,
            "events": self._with_events,
            "timeout_ms": session.timeout_ms,
        }
        if self.staged or any(tensor.device.type != "cpu" for tensor in tensors.values()):
            self._session = Session("worker", named, STAGED, session)
            groups = sorted({layer[1] for layer in layers})
            staging = Staging(self._session.client, layout, tensors, groups)
            return Worker.staged(staging, self._session.client, STAGED, **how)
        storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors.values()}
        return Worker(
            session.socket,
            named,
            copy_threads=session.num_copy_threads,
            layout=layout,
            blocks=config.num_blocks,
            ranges=list(storages.items()),
            **how,
        )

    def handshake(self) -> UmbpHandshake | None:
        """For the scheduler; none before registration."""
        return UmbpHandshake(self.descriptor, self._socket) if self.descriptor else None

    def begin_step(self) -> None:
        self._stored = False

    def preempt(self, metadata: UmbpMetadata) -> None:
        """Before the engine overwrites blocks of preempted requests."""
        if self._core is not None:
            self._core.handle_preemptions(metadata.plan)

    def load(self, metadata: UmbpMetadata) -> None:
        if self._core is not None:
            self._core.start_load(metadata.plan)

    def wait_for_layer(self) -> None:
        if self._core is not None:
            self._core.wait_for_layer_load()

    def store(self, metadata: UmbpMetadata) -> None:
        """Once a step, however often it is called."""
        if self._core is not None and not self._stored:
            self._stored = True
            self._core.store(metadata.plan)

    def finished(self) -> set[str]:
        """Requests whose asynchronous loads have ended since the last call."""
        return set(self._core.take_finished()) if self._core is not None else set()

    def failed_requests(self) -> set[str]:
        return set(self._core.take_failed_requests()) if self._core is not None else set()

    def load_errors(self) -> set[int]:
        return set(self._core.take_load_errors()) if self._core is not None else set()

    def report(self) -> UmbpWorkerMetadata | None:
        """What this worker has come to since the last call, if anything."""
        self._look()
        if self._core is None:
            return None
        events = {event: (workers, set(failed)) for event, workers, failed in self._core.take_store_events()}
        gone = set(self._core.take_removed())
        return UmbpWorkerMetadata(events, gone) if events or gone else None

    def stats(self) -> UmbpStats | None:
        data = self._core.take_stats() if self._core is not None else {}
        return UmbpStats(data=data) if data else None

    def _look(self) -> None:
        if self._session is not None:
            self._session.look()
        if self._core is not None and (notice := self._core.notice()) is not None:
            # One warning per engine: the scheduler's.
            logger.info("worker %s: %s", self._vllm_config.parallel_config.rank, notice[1])

    def close(self) -> None:
        """When it returns, no thread touches the engine's memory."""
        if self._core is not None:
            self._core.close()
        if self._session is not None:
            self._session.close()
        self._tensors = []
        if self._embedded is not None:
            self._embedded.stop()
