"""What scheduler and workers of one engine send each other, through vLLM. Every field is plain Python."""

from dataclasses import dataclass, field

from vllm.distributed.kv_events import BlockRemoved, BlockStored
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorHandshakeMetadata,
    KVConnectorMetadata,
    KVConnectorWorkerMetadata,
)
from vllm.v1.core.kv_cache_utils import BlockHash, maybe_convert_block_hash

from umbp import StepPlan, sum_store_events

Block = tuple[int, bytes]
"""Group, hash."""
MEDIUM = "CPU"
LOCALITY = "LOCAL"


@dataclass
class UmbpMetadata(KVConnectorMetadata):
    """What workers are to do in one step."""

    plan: StepPlan


@dataclass
class UmbpWorkerMetadata(KVConnectorWorkerMetadata):
    """What workers have come to in one step; blocks are (group, hash)."""

    store_events: dict[int, tuple[int, set[Block]]] = field(default_factory=dict)
    """Events that ended: on how many workers, and what failed on any of them."""
    removed: set[Block] = field(default_factory=set)
    """Blocks of any worker that no tier has any more."""

    def aggregate(self, other: KVConnectorWorkerMetadata) -> "UmbpWorkerMetadata":
        """Both together."""
        assert isinstance(other, UmbpWorkerMetadata)
        events = sum_store_events(self.store_events, other.store_events)
        return UmbpWorkerMetadata(events, self.removed | other.removed)


@dataclass(frozen=True)
class UmbpHandshake(KVConnectorHandshakeMetadata):
    """What must match for a worker's bytes to mean the same; the scheduler asks in the same namespace."""

    descriptor: dict[str, str]
    socket: str


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
