"""UmbpConnector with scheduler and worker in processes of their own, on a daemon beside them and on an embedded one."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from checks import (
    HOLD_MS,
    TIMEOUT_MS,
    NeverLoadedChecks,
    NoPrefixCacheChecks,
    PreemptionChecks,
    PrefixChecks,
    check_prefixes,
    closing,
)
from conftest import Plain
from daemon import Daemon
from engine import Engine, EngineOptions
from store import Store
from test_connector import MODULE, running

import umbp


class TestAsynchronousLoads(PrefixChecks, NeverLoadedChecks, PreemptionChecks):
    @pytest.fixture(scope="class")
    def engine(self, model: Path, daemon: Daemon) -> Iterator[Engine]:
        with running(model, daemon, {}, separate=True, blocks=30) as engine:
            yield engine

    @pytest.fixture(scope="class")
    def store(self, daemon: Daemon, engine: Engine) -> Iterator[Store]:
        store = Store(daemon, engine.descriptor(), "any")
        yield store
        store.close()


class TestSynchronousLoadsWithoutPrefixCache(NoPrefixCacheChecks):
    @pytest.fixture(scope="class")
    def engine(self, model: Path, daemon: Daemon) -> Iterator[Engine]:
        extra = {"load_async": False, "save_decode_cache": True}
        with running(model, daemon, extra, separate=True, prefix_caching=False) as engine:
            yield engine


def test_an_embedded_daemon_serves_its_engine(model: Path, plain: Plain, tmp_path: Path) -> None:
    config = tmp_path / "umbpd.toml"
    config.write_text('[[tier]]\nname = "dram"\nbackend = "dram"\ncapacity = "64MiB"\n')
    extra = {"mode": "embedded", "config": str(config), "timeout_ms": TIMEOUT_MS, "hold_ms": HOLD_MS}
    options = EngineOptions(
        "UmbpConnector", MODULE, extra, separate=True, environment={"XDG_RUNTIME_DIR": str(tmp_path)}
    )
    with closing(model, options) as engine:
        check_prefixes(engine, plain)


def test_two_workers_make_up_a_block_together_and_their_engine_warns_once(
    model: Path, plain: Plain, tmp_path: Path
) -> None:
    """C5: a block is there only if both have stored their part."""
    late = Daemon(tmp_path)
    log = tmp_path / "engine.log"
    # vLLM gives level and text to its handler alone.
    told = {"VLLM_CPU_OMP_THREADS_BIND": "0|1", "VLLM_LOGGING_LEVEL": "INFO"}
    with running(model, late, {"key_namespace": "two"}, separate=True, tp=2, environment=told, log=log) as engine:
        lines = [line for line in log.read_text(errors="replace").splitlines() if f"no umbpd on {late.socket}" in line]
        assert len([line for line in lines if "WARNING" in line]) == 1, lines
        late.start()
        try:
            late.await_engines()
            check_prefixes(engine, plain)
            assert f"attached to umbpd {umbp.__version__} on {late.socket}" in log.read_text(errors="replace")
        finally:
            late.stop()
