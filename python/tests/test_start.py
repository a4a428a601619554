"""How connectors begin, or refuse to: with configurations made here, and no engine."""

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from daemon import Daemon
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
from vllm.v1.kv_cache_interface import FullAttentionSpec

from umbp.vllm import UmbpConnector, identity
from umbp.vllm.messages import UmbpHandshake
from umbp.vllm.options import ConnectorOptions
from umbp.vllm.runtime import UMBPStoreConnector
from umbp.vllm.scheduler import SchedulerSide
from umbp.vllm.session import Session, SessionOptions
from umbp.vllm.worker import WorkerSide

BLOCK = 16


class ModelFile:
    """As a model's config.json after overrides."""

    def __init__(self, **fields: Any) -> None:
        self._fields = {"rope_theta": 10000.0, "rope_scaling": None, "transformers_version": "5.0"} | fields

    def to_dict(self) -> dict[str, Any]:
        return self._fields


def configuration(**changed: Any) -> Any:
    """As much of vLLM's configuration as is read; a change is named `part__field`."""
    parts: dict[str, dict[str, Any]] = {
        "model_config": {
            "model": "m",
            "revision": None,
            "dtype": torch.float32,
            "quantization": None,
            "quantization_config": None,
            "hf_config": ModelFile(),
            "hf_text_config": None,
            "architecture": "LlamaForCausalLM",
            "model_weights": "",
            "code_revision": None,
            "multimodal_config": None,
            "max_model_len": 4096,
            "seed": 0,
        },
        "cache_config": {
            "block_size": BLOCK,
            "cache_dtype": "auto",
            "prefix_caching_hash_algo": "sha256",
            "prefix_match_unit": None,
        },
        "parallel_config": {
            "tensor_parallel_size": 1,
            "pipeline_parallel_size": 1,
            "prefill_context_parallel_size": 1,
            "decode_context_parallel_size": 1,
            "world_size": 1,
            "rank": 0,
        },
        "load_config": {"load_format": "auto"},
        "attention_config": {"indexer_kv_dtype": "auto"},
        "mamba_config": {"enable_stochastic_rounding": False},
        "compilation_config": {"static_forward_context": {}},
        "kv_transfer_config": {
            "kv_role": "kv_both",
            "kv_connector_extra_config": {},
            "kv_load_failure_policy": "recompute",
        },
    }
    for name, value in changed.items():
        part, field = name.split("__")
        parts[part][field] = value
    built = {part: SimpleNamespace(**values) for part, values in parts.items()}
    return SimpleNamespace(**built, speculative_config=None, kv_events_config=None, max_concurrent_batches=1)


def groups() -> Any:
    spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=8, dtype=torch.float32)
    group = SimpleNamespace(kv_cache_spec=spec, layer_names=["layer"], is_eagle_group=False)
    return SimpleNamespace(
        kv_cache_groups=[group],
        prefix_cacheable_group_ids=[0],
        prefix_cache_retention_interval=None,
        kv_cache_tensors=[SimpleNamespace(layers=["layer"], block_stride=spec.page_size_bytes)],
        num_blocks=4,
    )


@pytest.mark.parametrize("role", ["SCHEDULER", "WORKER"])
@pytest.mark.parametrize("connector", [UmbpConnector, UMBPStoreConnector])
@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"kv_transfer_config__kv_load_failure_policy": "fail"}, 'kv_load_failure_policy="recompute"'),
        ({"cache_config__prefix_caching_hash_algo": "xxhash"}, "PYTHONHASHSEED"),
        ({"kv_transfer_config__kv_connector_extra_config": {"timeout_ms": "5s"}}, "expected a whole number"),
    ],
)
def test_what_would_not_work_is_refused_at_start_by_both_connectors(
    connector: Any, changed: dict[str, Any], message: str, role: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H1, J1."""
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    with pytest.raises((ValueError, RuntimeError), match=message):
        connector(configuration(**changed), KVConnectorRole[role], groups())


@pytest.mark.parametrize("role", ["SCHEDULER", "WORKER"])
@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"kv_transfer_config__kv_connector_extra_config": {"sokcet": "/x"}}, "did you mean 'socket'"),
        ({"parallel_config__pipeline_parallel_size": 2}, "pipeline_parallel_size"),
    ],
)
def test_what_the_connector_does_not_know_is_refused(changed: dict[str, Any], message: str, role: str) -> None:
    """J1."""
    with pytest.raises(ValueError, match=message):
        UmbpConnector(configuration(**changed), KVConnectorRole[role], groups())


class Request:
    """A request of two whole blocks."""

    request_id = "request"
    num_tokens = num_prompt_tokens = 2 * BLOCK + 1
    num_computed_tokens = 0
    all_token_ids = tuple(range(2 * BLOCK + 1))
    block_hashes = (b"\x01" * 32, b"\x02" * 32)


class Table:
    def get_block_ids(self) -> tuple[list[int], ...]:
        return ([1, 2, 3],)


def stores_of(side: SchedulerSide) -> list[tuple[str, int]]:
    """What a first step of a request stores."""
    request: Any = Request()
    assert side.matched(request, 0)[0] == 0
    table: Any = Table()
    side.allocated(request, table, 0)
    new = SimpleNamespace(req_id="request", num_computed_tokens=0, block_ids=([1, 2, 3],))
    cached = SimpleNamespace(req_ids=[], num_computed_tokens=[], new_block_ids=[], resumed_req_ids=set())
    output: Any = SimpleNamespace(
        scheduled_new_reqs=[new],
        scheduled_cached_reqs=cached,
        kv_connector_block_state=None,
        num_scheduled_tokens={"request": Request.num_tokens},
        finished_req_ids=set(),
        preempted_req_ids=None,
    )
    return side.step(output).plan.stores


@pytest.mark.parametrize(
    ("sizes", "workers", "reports", "stored"),
    [
        ({"tensor_parallel_size": 2}, 2, 2, True),
        ({"tensor_parallel_size": 2}, 2, 1, False),
        ({"tensor_parallel_size": 2}, 2, 0, False),
        # vLLM names reports by tensor parallel rank, and by the prefill context rank under dcp.
        ({"tensor_parallel_size": 2, "prefill_context_parallel_size": 2}, 4, 2, True),
        (
            {"tensor_parallel_size": 2, "prefill_context_parallel_size": 2, "decode_context_parallel_size": 2},
            4,
            2,
            False,
        ),
        (
            {"tensor_parallel_size": 2, "prefill_context_parallel_size": 2, "decode_context_parallel_size": 2},
            4,
            4,
            True,
        ),
    ],
)
def test_an_engine_one_of_whose_workers_is_missing_stores_nothing_and_says_so_once(
    sizes: dict[str, int],
    workers: int,
    reports: int,
    stored: bool,
    daemon: Daemon,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A store that a worker never ends would pin its blocks, and a load would never finish."""
    config = configuration(
        parallel_config__world_size=workers, **{f"parallel_config__{name}": size for name, size in sizes.items()}
    )
    side = SchedulerSide(config, groups(), ConnectorOptions(socket=str(daemon.socket)), enabled=True)
    with caplog.at_level(logging.WARNING):
        side.bind([UmbpHandshake({"made by": "tests of the start"}, str(daemon.socket))] * reports)
    assert bool(stores_of(side)) == stored
    assert [record.args for record in caplog.records] == ([] if stored else [(reports, len_of(sizes))])
    side.close()


def len_of(sizes: dict[str, int]) -> int:
    """Reports that are due."""
    both = "decode_context_parallel_size" in sizes
    return sizes["tensor_parallel_size"] * (sizes["prefill_context_parallel_size"] if both else 1)


def test_a_worker_whose_report_would_not_be_missed_ends_the_start(caplog: pytest.LogCaptureFixture) -> None:
    alone = WorkerSide(configuration(), groups(), ConnectorOptions(socket="/nowhere"))
    alone.register({})
    assert alone.handshake() is None
    assert len(caplog.records) == 1
    hidden = configuration(parallel_config__prefill_context_parallel_size=2)
    with pytest.raises(ValueError, match="prefill context parallelism"):
        WorkerSide(hidden, groups(), ConnectorOptions(socket="/nowhere")).register({})


def longrope(**fields: Any) -> ModelFile:
    return ModelFile(rope_scaling={"rope_type": "longrope"}, **fields)


class Layer:
    def __init__(self, backend: str) -> None:
        self._backend = backend

    def get_attn_backend(self) -> Any:
        return SimpleNamespace(get_name=lambda: self._backend)


def layers(backend: str) -> dict[str, Any]:
    return {"layer": Layer(backend), "other": object()}


WITH_DCP = {"parallel_config__tensor_parallel_size": 2, "parallel_config__decode_context_parallel_size": 2}
BYTES_CHANGE: list[dict[str, Any]] = [
    {},
    {"model_config__hf_config": ModelFile(rope_theta=20000.0)},
    {"model_config__hf_config": ModelFile(rope_scaling={"rope_type": "yarn", "factor": 4.0})},
    {"model_config__hf_text_config": ModelFile(rope_theta=5.0)},
    {"model_config__hf_config": longrope()},
    {"model_config__hf_config": longrope(), "model_config__max_model_len": 131072},
    {"model_config__architecture": "TransformersForCausalLM"},
    {"model_config__model_weights": "s3://elsewhere"},
    {"model_config__code_revision": "abc"},
    {"model_config__quantization": "fp8"},
    {"model_config__quantization": "fp8", "model_config__quantization_config": {"linear": "fp8_per_token"}},
    {"model_config__dtype": torch.bfloat16},
    {"model_config__multimodal_config": SimpleNamespace(video_pruning_rate=0.5)},
    {"load_config__load_format": "dummy"},
    {"load_config__load_format": "dummy", "model_config__seed": 1},
    {"cache_config__cache_dtype": "fp8_e4m3"},
    {"cache_config__cache_dtype": "fp8_e4m3", "cache_config__calculate_kv_scales": True},
    {"attention_config__indexer_kv_dtype": "mxfp4"},
    {"mamba_config__enable_stochastic_rounding": True},
    WITH_DCP,
    WITH_DCP | {"parallel_config__cp_kv_cache_interleave_size": 16},
    {"compilation_config__static_forward_context": layers("FLASH_ATTN")},
    {"compilation_config__static_forward_context": layers("FLASHINFER")},
]


def named(changed: dict[str, Any]) -> dict[str, str]:
    return identity.descriptor(configuration(**changed), groups(), {}, None)


def test_every_setting_that_changes_bytes_separates_blocks() -> None:
    """H6."""
    descriptors = [named(changed) for changed in BYTES_CHANGE]
    for index, first in enumerate(descriptors):
        for second in range(index):
            assert first != descriptors[second], (BYTES_CHANGE[index], BYTES_CHANGE[second])


@pytest.mark.parametrize(
    "changed",
    [
        {"model_config__max_model_len": 131072},
        {"model_config__seed": 7},
        {"model_config__hf_config": ModelFile(transformers_version="5.1", _name_or_path="/elsewhere")},
        {"parallel_config__cp_kv_cache_interleave_size": 16},
        {"cache_config__calculate_kv_scales": False},
        {"load_config__load_format": "safetensors"},
        {"parallel_config__rank": 3},
    ],
)
def test_a_setting_that_changes_no_byte_costs_no_hit(changed: dict[str, Any]) -> None:
    assert named(changed) == named({})


def test_a_configuration_is_read_the_same_in_each_process() -> None:
    class Odd:
        pass

    first, second = ({"odd": Odd(), "set": {"a", "b", "c"}, "call": Odd().__repr__} for _ in range(2))
    assert identity._plain(first) == identity._plain(second)


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Callable[[str, str | None], Session]]:
    made: list[Session] = []

    def make(role: str, socket: str | None) -> Session:
        options = SessionOptions(socket or str(tmp_path / "nobody.sock"), timeout_ms=100)
        made.append(Session(role, {"made by": "tests of the start"}, "start", options))
        return made[-1]

    yield make
    for each in made:
        each.close()


def test_of_an_engines_sessions_one_warns_and_each_says_where_the_daemon_is(
    session: Callable[[str, str | None], Session], daemon: Daemon, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        for role in ("scheduler", "worker", "worker"):
            session(role, None).look()
        assert [record.levelname for record in caplog.records] == ["WARNING", "INFO", "INFO"]
        caplog.clear()
        attached = session("scheduler", str(daemon.socket))
        assert attached.client.wait_attached(10_000)
        attached.look()
        attached.look()
    assert caplog.records[-1].getMessage() == f"attached to umbpd on {daemon.socket}"
    assert caplog.records[-1].levelname == "INFO"
