"""KV cache groups, as the state machines know them."""

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheSpec

logger = logging.getLogger("vllm.umbp")


@dataclass(frozen=True)
class Group:
    """One group."""

    kind: str
    """"full", "sliding_window", "mamba", "scratch" (never looked up, stored or loaded) or "unknown"."""
    block_size: int
    """Tokens, as configured."""
    sliding_window: int | None = None
    mode: str | None = None
    """Of a mamba group: "align" or "all"."""
    eagle: bool = False
    """It holds layers of a draft model."""


def groups_of(kv_cache_config: "KVCacheConfig") -> list[Group]:
    """All groups, in the order of their ids."""
    kept = set(kv_cache_config.prefix_cacheable_group_ids)
    groups = []
    for group_id, group in enumerate(kv_cache_config.kv_cache_groups):
        spec = group.kv_cache_spec
        own = getattr(spec, "kv_cache_specs", None)
        kind, window, mode = _kind(next(iter(own.values())) if own else spec) if group_id in kept else SCRATCH
        groups.append(Group(kind, spec.block_size, window, mode, bool(group.is_eagle_group)))
    return groups


SCRATCH: tuple[str, int | None, str | None] = ("scratch", None, None)


def _kind(spec: "KVCacheSpec") -> tuple[str, int | None, str | None]:
    from vllm.v1 import kv_cache_interface as known

    # Attends to a window and, besides, to whole references: no rule here knows which of its blocks a resume needs.
    odd: tuple[type, ...] = tuple(filter(None, [getattr(known, "RSWASpec", None)]))
    if isinstance(spec, odd):
        return "unknown", None, None
    if isinstance(spec, known.SlidingWindowSpec):
        return "sliding_window", spec.sliding_window, None
    if isinstance(spec, known.MambaSpec):
        mode = spec.mamba_cache_mode
        return ("mamba", None, mode) if mode in ("align", "all") else ("unknown", None, None)
    if isinstance(spec, known.FullAttentionSpec):
        return "full", None, None
    return "unknown", None, None


def unsupported(kv_cache_config: "KVCacheConfig") -> str | None:
    """Why blocks of this engine are neither looked up nor stored; none = they are."""
    groups = groups_of(kv_cache_config)
    for group_id, group in enumerate(groups):
        name = type(kv_cache_config.kv_cache_groups[group_id].kv_cache_spec).__name__
        if group.kind == "unknown":
            return f"KV cache group {group_id} ({name}) is of a kind that is not known here"
        if group.kind == "scratch" and group.eagle:
            # What skips the prompt's computation skips the drafter's too.
            return f"KV cache group {group_id} ({name}) of the draft model cannot be restored"
    return None if any(group.kind != "scratch" for group in groups) else "no KV cache group can be restored"
