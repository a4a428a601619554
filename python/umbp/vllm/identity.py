"""What decides what a block's bytes mean, read from vLLM's objects."""

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import fields as dataclass_fields
from typing import TYPE_CHECKING

from umbp import engine_descriptor

if TYPE_CHECKING:
    import torch
    from vllm.config import ModelConfig, VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheGroupSpec, KVCacheSpec

SEED = "PYTHONHASHSEED"


class UnstableHashes(RuntimeError):
    """Block hashes of this engine mean nothing to another process."""


@dataclass(frozen=True)
class Place:
    """A worker's place among those that hold shards of a block."""

    sizes: tuple[int, int, int, int]
    """tp, pcp, dcp, pp."""
    index: int
    """Of the worker in its engine; tensor parallel ranks are innermost."""
    replicas: int
    """Tensor parallel ranks in a row that hold equal bytes (MLA), as the engine counts them: where that can be relied
    on they use one key, and the first to store wins."""

    @classmethod
    def of(cls, vllm_config: "VllmConfig", kv_cache_config: "KVCacheConfig") -> "Place":
        parallel = vllm_config.parallel_config
        pcp = getattr(parallel, "prefill_context_parallel_size", 1)
        dcp = getattr(parallel, "decode_context_parallel_size", 1)
        sizes = (parallel.tensor_parallel_size, pcp, dcp, parallel.pipeline_parallel_size)
        return cls(sizes, parallel.rank, getattr(kv_cache_config, "kv_tp_replicas", 1))


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
    """Everything besides the tokens: what is not equal here never shares a block. Adapters, salts and images are in
    the block hashes."""
    model, cache = vllm_config.model_config, vllm_config.cache_config
    speculative = vllm_config.speculative_config
    draft = getattr(speculative, "draft_model_config", None)
    return engine_descriptor(
        key_namespace=key_namespace,
        model=model.model,
        revision=model.revision,
        block_hash=f"{cache.prefix_caching_hash_algo} {getattr(kv_cache_config, 'hash_block_size', None)}",
        kv_layout=getattr(kv_cache_config, "kv_cache_layout", None),
        kv_dtype=str(cache.cache_dtype),
        block_size=cache.block_size,
        sizes=Place.of(vllm_config, kv_cache_config).sizes,
        groups=[_group(group, tensors) for group in kv_cache_config.kv_cache_groups],
        drafter=None
        if speculative is None
        else (str(speculative.method), getattr(draft, "model", None), getattr(draft, "revision", None)),
        extra={
            "engine": "vllm",
            "model_dtype": str(model.dtype),
            "quantization": str(model.quantization),
            **model_numbers(model),
            "kv_tp_replicas": str(getattr(kv_cache_config, "kv_tp_replicas", 1)),
        },
    )


VOLATILE = frozenset({"_name_or_path", "transformers_version"})
"""Of a model's configuration, what says nothing of its numbers."""


def model_numbers(model: "ModelConfig") -> dict[str, str]:
    """What the engine computes with the weights: the model's configuration with all overrides (rotary embeddings, for
    one, decide the bytes of keys and are in no shape)."""
    given = {name: value for name, value in model.hf_config.to_dict().items() if name not in VOLATILE}
    # What is no JSON stands by its kind alone: its text may differ in each process.
    text = json.dumps(given, sort_keys=True, default=lambda value: type(value).__name__)
    numbers = {"model_config_sha256": hashlib.sha256(text.encode()).hexdigest()}
    if '"longrope"' in text or '"su"' in text:
        # The engine chooses between two sets of factors by the length it was started with.
        numbers["max_model_len"] = str(model.max_model_len)
    return numbers


Group = tuple[str, int, list[tuple[str, dict[str, str]]]]


def _group(group: "KVCacheGroupSpec", tensors: Mapping[str, "torch.Tensor"]) -> Group:
    layers = []
    for name, spec in layer_specs(group).items():
        fields = {field.name: str(getattr(spec, field.name)) for field in dataclass_fields(spec)}
        tensor = {"tensor": _shape(tensors[name])} if name in tensors else {}
        layers.append((name, {"kind": type(spec).__name__} | fields | tensor))
    return type(group.kv_cache_spec).__name__, group.kv_cache_spec.block_size, layers


def _shape(tensor: "torch.Tensor") -> str:
    """Without the number of blocks, and so without strides that depend on it."""
    order = sorted(range(1, tensor.dim()), key=tensor.stride, reverse=True)
    return f"{tensor.dtype} {list(tensor.shape[1:])} {order}"


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
