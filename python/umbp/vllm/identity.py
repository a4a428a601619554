"""What decides what a block's bytes mean, read from vLLM's objects."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import fields as dataclass_fields
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheGroupSpec, KVCacheSpec

FORMAT = "1"
"""Of the descriptor. Another one never shares blocks with this."""
SEED = "PYTHONHASHSEED"


class UnstableHashes(RuntimeError):
    """Block hashes of this engine mean nothing to another process."""


@dataclass(frozen=True)
class Topology:
    """Ranks that hold a shard of a block, and this worker's place among them. Ranks of equal bytes count once."""

    sizes: tuple[int, int, int, int]
    """tp, pcp, dcp, pp."""
    ranks: tuple[int, int, int, int]

    @classmethod
    def of(cls, vllm_config: "VllmConfig", kv_cache_config: "KVCacheConfig") -> "Topology":
        parallel = vllm_config.parallel_config
        tp, pp = parallel.tensor_parallel_size, parallel.pipeline_parallel_size
        pcp = getattr(parallel, "prefill_context_parallel_size", 1)
        dcp = getattr(parallel, "decode_context_parallel_size", 1)
        rank = parallel.rank
        tp_rank = rank % tp
        # Consecutive ranks may hold equal bytes (MLA): they use one key, and the first to store it wins.
        replicas = getattr(kv_cache_config, "kv_tp_replicas", 1)
        replicas = replicas if replicas > 1 and dcp == 1 and tp % replicas == 0 else 1
        return cls(
            (tp // replicas, pcp, dcp, pp),
            (tp_rank // replicas, rank // tp % pcp, tp_rank % dcp, rank // (tp * pcp) % pp),
        )


def layer_specs(group: "KVCacheGroupSpec") -> dict[str, "KVCacheSpec"]:
    """Each layer of a group with its own spec."""
    spec = group.kv_cache_spec
    own: Mapping[str, KVCacheSpec] | None = getattr(spec, "kv_cache_specs", None)
    return {name: spec if own is None else own[name] for name in group.layer_names}


def descriptor(
    vllm_config: "VllmConfig",
    kv_cache_config: "KVCacheConfig",
    tensors: Mapping[str, "torch.Tensor"],
    key_namespace: str | None,
) -> dict[str, str]:
    """Everything besides the tokens: what is not equal here never shares a block. `key_namespace` stands for the model,
    never for the shape of its KV."""
    model, cache = vllm_config.model_config, vllm_config.cache_config
    topology = Topology.of(vllm_config, kv_cache_config)
    fields: dict[str, Any] = {
        "format": FORMAT,
        "connector": "umbp.vllm",
        "block_size": cache.block_size,
        "hash": [cache.prefix_caching_hash_algo, getattr(kv_cache_config, "hash_block_size", None)],
        "kv_cache_dtype": cache.cache_dtype,
        "kv_cache_layout": getattr(kv_cache_config, "kv_cache_layout", None),
        "topology": dict(zip(("tp", "pcp", "dcp", "pp"), topology.sizes, strict=True)),
        "groups": [_group(group) for group in kv_cache_config.kv_cache_groups],
        "tensors": {name: _tensor(tensor) for name, tensor in tensors.items()},
    }
    if key_namespace is not None:
        fields["key_namespace"] = key_namespace
    else:
        fields |= {
            "model": [model.model, model.revision, str(model.dtype), model.quantization],
            "speculative": _speculative(vllm_config),
        }
    return {name: _text(value) for name, value in fields.items()}


def _group(group: "KVCacheGroupSpec") -> dict[str, Any]:
    def spec(spec: "KVCacheSpec") -> dict[str, str]:
        own = {field.name: str(getattr(spec, field.name)) for field in dataclass_fields(spec)}
        return {"kind": type(spec).__name__} | own

    return {"layers": {name: spec(own) for name, own in layer_specs(group).items()}}


def _tensor(tensor: "torch.Tensor") -> list[Any]:
    """Without the number of blocks, and so without strides that depend on it."""
    order = sorted(range(1, tensor.dim()), key=tensor.stride, reverse=True)
    return [str(tensor.dtype), list(tensor.shape[1:]), order]


def _speculative(vllm_config: "VllmConfig") -> list[Any] | None:
    speculative = vllm_config.speculative_config
    if speculative is None:
        return None
    draft = getattr(speculative, "draft_model_config", None)
    return [speculative.method, getattr(draft, "model", None), getattr(draft, "revision", None)]


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True, separators=(",", ":"))


def check_hashes(algorithm: str) -> None:
    """Refuses hashes that are random per process: each block would be stored, and none ever found."""
    if os.environ.get(SEED) is not None:
        return
    from vllm.v1.core import kv_cache_utils

    # Newer engines derive the first hash from a fixed seed where the algorithm is cryptographic.
    fixed = hasattr(kv_cache_utils, "DEFAULT_NONE_HASH_SEED") and algorithm.startswith("sha256")
    if not fixed:
        raise UnstableHashes(
            f"block hashes ({algorithm}) differ in each process, so no stored block would ever be found: "
            f"set {SEED} to the same number for all engines, for example {SEED}=0, or choose "
            "--prefix-caching-hash-algo sha256"
        )
