"""What scheduler and workers of one engine send each other, through vLLM. Every field is plain Python."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from vllm.distributed.kv_events import BlockRemoved, BlockStored, KVCacheEvent, KVConnectorKVEvents
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorHandshakeMetadata,
    KVConnectorMetadata,
    KVConnectorWorkerMetadata,
)
from vllm.v1.core.kv_cache_utils import BlockHash, maybe_convert_block_hash

from umbp import StepPlan

MEDIUM = "CPU"
LOCALITY = "LOCAL"


@dataclass
class UmbpMetadata(KVConnectorMetadata):
    """What workers are to do in one step."""

    plan: StepPlan


@dataclass
class UmbpWorkerMetadata(KVConnectorWorkerMetadata):
    """Store events that workers have completed: how many did, and what failed on any of them, as (group, hash)."""

    store_events: dict[int, tuple[int, set[tuple[int, bytes]]]] = field(default_factory=dict)

    def aggregate(self, other: KVConnectorWorkerMetadata) -> "UmbpWorkerMetadata":
        """Both together."""
        assert isinstance(other, UmbpWorkerMetadata)
        merged = dict(self.store_events)
        for event, (workers, failed) in other.store_events.items():
            own_workers, own_failed = merged.get(event, (0, set()))
            merged[event] = (own_workers + workers, own_failed | failed)
        return UmbpWorkerMetadata(merged)


@dataclass(frozen=True)
class UmbpHandshake(KVConnectorHandshakeMetadata):
    """What must match for a worker's bytes to mean the same; the scheduler asks in the same namespace."""

    descriptor: dict[str, str]
    socket: str


class UmbpKVEvents(KVConnectorKVEvents):
    """Events of one step from all workers, each once; of several steps, in order."""

    def __init__(self, events: Iterable[KVCacheEvent] = ()) -> None:
        self._events = list(dict.fromkeys(events))
        self._workers = 1

    def add_events(self, events: list[KVCacheEvent]) -> None:
        self._events = list(dict.fromkeys([*self._events, *events]))

    def aggregate(self) -> "UmbpKVEvents":
        return self

    def increment_workers(self, count: int = 1) -> None:
        self._workers += count

    def get_all_events(self) -> list[KVCacheEvent]:
        return list(self._events)

    def get_number_of_workers(self) -> int:
        return self._workers

    def clear_events(self) -> None:
        self._events = []
        self._workers = 1


def removed(group: int, block_hash: bytes) -> BlockRemoved:
    """A block that no tier has any more."""
    hashes = [maybe_convert_block_hash(BlockHash(block_hash))]
    return BlockRemoved(block_hashes=hashes, medium=MEDIUM, group_idx=group, locality=LOCALITY)


def stored(group: int, block_hash: bytes, parent: bytes | None, tokens: list[int], block_size: int) -> BlockStored:
    """A block that all ranks have stored."""
    return BlockStored(
        block_hashes=[maybe_convert_block_hash(BlockHash(block_hash))],
        parent_block_hash=None if parent is None else maybe_convert_block_hash(BlockHash(parent)),
        token_ids=tokens,
        block_size=block_size,
        lora_id=None,
        medium=MEDIUM,
        lora_name=None,
        group_idx=group,
        locality=LOCALITY,
    )
