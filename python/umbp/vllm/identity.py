"""What decides what a block's bytes mean, read from vLLM's objects."""

import enum
import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, is_dataclass
from dataclasses import fields as dataclass_fields
from typing import TYPE_CHECKING, Any

from umbp import engine_descriptor

if TYPE_CHECKING:
    import torch
    from vllm.config import VllmConfig
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
        return cls(_sizes(vllm_config), parallel.rank, getattr(kv_cache_config, "kv_tp_replicas", 1))


def reports_tell_workers_apart(vllm_config: "VllmConfig") -> bool:
    """vLLM names a worker's report by its tensor parallel rank; by the prefill context rank besides only under decode
    context parallelism. Reports of one name replace each other."""
    sizes = _sizes(vllm_config)
    return sizes[1] == 1 or sizes[2] > 1


def reports_expected(vllm_config: "VllmConfig") -> int:
    """How many reports reach the scheduler when every worker makes one."""
    tp, pcp, _, pp = _sizes(vllm_config)
    return pp * tp * (pcp if reports_tell_workers_apart(vllm_config) else 1)


def _sizes(vllm_config: "VllmConfig") -> tuple[int, int, int, int]:
    """tp, pcp, dcp, pp."""
    parallel = vllm_config.parallel_config
    pcp = getattr(parallel, "prefill_context_parallel_size", 1)
    dcp = getattr(parallel, "decode_context_parallel_size", 1)
    return parallel.tensor_parallel_size, pcp, dcp, parallel.pipeline_parallel_size


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
        # Engines with different seeds share nothing anyway: as two namespaces, that can be seen.
        block_hash=f"{cache.prefix_caching_hash_algo} {getattr(kv_cache_config, 'hash_block_size', None)} "
        f"seed {os.environ.get(SEED, 'default')}",
        kv_layout=getattr(kv_cache_config, "kv_cache_layout", None),
        kv_dtype=str(cache.cache_dtype),
        block_size=cache.block_size,
        sizes=Place.of(vllm_config, kv_cache_config).sizes,
        groups=[_group(group, tensors, _backends(vllm_config)) for group in kv_cache_config.kv_cache_groups],
        drafter=None
        if speculative is None
        else (str(speculative.method), getattr(draft, "model", None), getattr(draft, "revision", None)),
        extra={"kv_tp_replicas": str(getattr(kv_cache_config, "kv_tp_replicas", 1))} | settings(vllm_config),
    )


def settings(vllm_config: "VllmConfig") -> dict[str, str]:
    """What of the engine's configuration changes a block's bytes, besides what its groups and layers say themselves.

    Two engines of one model may differ by an override alone: rope scaling, scales, weights that are quantized while
    they are loaded. What changes no byte is left out, since it would cost hits: batch sizes, lengths, cache sizes.
    """
    from vllm import __version__, envs

    model, cache, parallel = vllm_config.model_config, vllm_config.cache_config, vllm_config.parallel_config
    draft = getattr(vllm_config.speculative_config, "draft_model_config", None)
    sizes = _sizes(vllm_config)
    text = {
        # How a kernel packs a block is no promise beyond a release.
        "engine": f"vllm {'.'.join(__version__.split('.')[:2])}",
        "model_dtype": model.dtype,
        "quantization": model.quantization,
        # The kernels' scales come from the first batch, not from the checkpoint.
        "calculate_kv_scales": bool(getattr(cache, "calculate_kv_scales", False)),
        "shuffled_kv": bool(getattr(envs, "VLLM_ROCM_SHUFFLE_KV_CACHE_LAYOUT", False)),
        "indexer_kv_dtype": getattr(getattr(vllm_config, "attention_config", None), "indexer_kv_dtype", None),
        "state_rounding": bool(
            getattr(getattr(vllm_config, "mamba_config", None), "enable_stochastic_rounding", False)
        ),
        # Which of a block's tokens a rank has.
        "interleave": getattr(parallel, "cp_kv_cache_interleave_size", 1) if sizes[1] * sizes[2] > 1 else 1,
    }
    named = {name: str(value) for name, value in text.items()}
    load = getattr(vllm_config, "load_config", None)
    if getattr(load, "load_format", None) == "dummy":
        named["random_weights"] = str(model.seed)
    return named | {"weights": _model_digest(model), "drafter_weights": _model_digest(draft) if draft else ""}


_NO_BYTES = frozenset({"_name_or_path", "transformers_version", "_commit_hash"})
"""Of a model's configuration; path and revision are named by themselves."""


def _model_digest(model: Any) -> str:
    """Of the model as it is after all overrides: shape, rope, quantization, where its weights and code come from."""
    configs = [getattr(model, name, None) for name in ("hf_config", "hf_text_config")]
    read = {
        "configs": [config.to_dict() for config in configs if config is not None],
        "architecture": getattr(model, "architecture", None),
        "weights": getattr(model, "model_weights", "") or "",
        "code_revision": getattr(model, "code_revision", None),
        "quantization": [getattr(model, name, None) for name in ("quantization", "quantization_config")],
        "pruning": [
            getattr(getattr(model, "multimodal_config", None), name, None)
            for name in ("video_pruning_rate", "video_pruning_method")
        ],
    }
    plain = _plain(read)
    text = json.dumps(plain, sort_keys=True)
    if "longrope" in text:
        # Its factors are those of short or of long contexts, for all of an engine's requests.
        text += str(model.max_model_len)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _plain(value: Any) -> Any:
    """The same in each process: nothing that depends on addresses or on the order of a set."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        return {str(name): _plain(item) for name, item in value.items() if name not in _NO_BYTES}
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, set | frozenset):
        return sorted(json.dumps(_plain(item), sort_keys=True) for item in value)
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name, None)) for field in dataclass_fields(value)}
    text = str(value)
    return type(value).__qualname__ if " at 0x" in text else text


def _backends(vllm_config: "VllmConfig") -> dict[str, str]:
    """Each layer's attention kernels, which may order a block's numbers in their own way under one shape."""
    layers = getattr(getattr(vllm_config, "compilation_config", None), "static_forward_context", None) or {}
    known = {name: layer for name, layer in layers.items() if hasattr(layer, "get_attn_backend")}
    return {name: layer.get_attn_backend().get_name() for name, layer in known.items()}


Group = tuple[str, int, list[tuple[str, dict[str, str]]]]


def _group(group: "KVCacheGroupSpec", tensors: Mapping[str, "torch.Tensor"], backends: Mapping[str, str]) -> Group:
    layers = []
    for name, spec in layer_specs(group).items():
        fields = {field.name: str(getattr(spec, field.name)) for field in dataclass_fields(spec)}
        tensor = {"tensor": _shape(tensors[name])} if name in tensors else {}
        kernels = {"backend": backends[name]} if name in backends else {}
        layers.append((name, {"kind": type(spec).__name__} | fields | tensor | kernels))
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
