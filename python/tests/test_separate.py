"""UmbpConnector with scheduler and worker in processes of their own, on a daemon beside them and on an embedded one."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from checks import HOLD_MS, TIMEOUT_MS, NoPrefixCacheChecks, PreemptionChecks, PrefixChecks
from conftest import A, B, Plain
from daemon import Daemon
from engine import Engine, EngineOptions
from store import Store
from test_connector import MODULE, running


class TestAsynchronousLoads(PrefixChecks, PreemptionChecks):
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
    def daemon(self, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
        daemon = Daemon(tmp_path_factory.mktemp("late"))
        yield daemon
        daemon.stop()

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
    engine = Engine(model, options)
    cached = []
    for prompt, expected in ((A, plain.a), (A, plain.a), (B, plain.b), (A, plain.a)):
        engine.forget()
        answer = engine.one(prompt)
        assert answer.tokens == expected
        cached.append(answer.cached)
    assert cached == [0, 288, 192, 288]
    engine.close()


def test_two_workers_make_up_a_block_together(model: Path, daemon: Daemon, plain: Plain) -> None:
    """C5: a block is there only if both have stored their part."""
    bound = {"VLLM_CPU_OMP_THREADS_BIND": "0|1"}
    with running(model, daemon, {"key_namespace": "two"}, separate=True, tp=2, environment=bound) as engine:
        cached = []
        for prompt, expected in ((A, plain.a), (A, plain.a), (B, plain.b), (A, plain.a)):
            engine.forget()
            answer = engine.one(prompt)
            assert answer.tokens == expected
            cached.append(answer.cached)
        assert cached == [0, 288, 192, 288]
