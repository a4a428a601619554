"""UmbpConnector, scheduler and worker in one process."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from checks import HOLD_MS, TIMEOUT_MS, NoPrefixCacheChecks, PreemptionChecks, PrefixChecks
from conftest import A, Plain
from daemon import Daemon
from engine import Engine, EngineOptions
from store import Store

MODULE = "umbp.vllm.connector"


@contextmanager
def running(model: Path, daemon: Daemon, extra: dict[str, Any], **how: Any) -> Iterator[Engine]:
    own = {"socket": str(daemon.socket), "timeout_ms": TIMEOUT_MS, "hold_ms": HOLD_MS}
    engine = Engine(model, EngineOptions("UmbpConnector", MODULE, own | extra, **how))
    daemon.engines += 1
    yield engine
    daemon.engines -= 1
    engine.close()


@pytest.fixture(scope="module")
def first(model: Path, daemon: Daemon) -> Iterator[Engine]:
    with running(model, daemon, {"load_async": True, "lookup_async": True}) as engine:
        yield engine


@pytest.fixture(scope="module")
def store(daemon: Daemon, first: Engine) -> Iterator[Store]:
    store = Store(daemon, first.descriptor(), "any")
    yield store
    store.close()


class TestAsynchronousLoadsAndLookups(PrefixChecks):
    @pytest.fixture
    def engine(self, first: Engine) -> Engine:
        return first


class TestSynchronousLoads(PrefixChecks, PreemptionChecks):
    @pytest.fixture(scope="class")
    def engine(self, model: Path, daemon: Daemon) -> Iterator[Engine]:
        with running(model, daemon, {"load_async": False}, blocks=30) as engine:
            yield engine

    def test_a_second_engine_hits_what_the_first_stored(
        self, first: Engine, engine: Engine, store: Store, plain: Plain
    ) -> None:
        first.forget()
        assert first.one(A).cached == 0
        store.await_blocks(first.hashes(A))
        answer = engine.one(A)
        assert (answer.tokens, answer.cached) == (plain.a, 288)


class TestWithoutPrefixCache(NoPrefixCacheChecks):
    @pytest.fixture(scope="class")
    def daemon(self, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
        daemon = Daemon(tmp_path_factory.mktemp("late"))
        yield daemon
        daemon.stop()

    @pytest.fixture(scope="class")
    def engine(self, model: Path, daemon: Daemon) -> Iterator[Engine]:
        with running(model, daemon, {"key_namespace": "late"}, prefix_caching=False, blocks=30) as engine:
            yield engine
