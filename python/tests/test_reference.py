"""vLLM's own UMBPStoreConnector on umbpd, one process."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from checks import (
    HOLD_MS,
    TIMEOUT_MS,
    NeverLoadedChecks,
    NoPrefixCacheChecks,
    PreemptionChecks,
    PrefixChecks,
    closing,
)
from conftest import A, Plain
from daemon import Daemon
from engine import Engine, EngineOptions
from store import Store

from umbp.vllm.session import reference_descriptor

NAMESPACE = "reference"


@contextmanager
def running(model: Path, daemon: Daemon, extra: dict[str, Any], **how: Any) -> Iterator[Engine]:
    own = {"socket": str(daemon.socket), "key_namespace": NAMESPACE, "timeout_ms": TIMEOUT_MS, "hold_ms": HOLD_MS}
    with closing(model, EngineOptions("UMBPStoreConnector", "umbp.vllm.runtime", own | extra, **how), daemon) as engine:
        yield engine


@pytest.fixture(scope="module")
def store(daemon: Daemon) -> Iterator[Store]:
    store = Store(daemon, reference_descriptor(NAMESPACE), NAMESPACE)
    yield store
    store.close()


@pytest.fixture(scope="module")
def first(model: Path, daemon: Daemon) -> Iterator[Engine]:
    with running(model, daemon, {"load_async": True}) as engine:
        yield engine


class TestAsynchronousLoads(PrefixChecks):
    """Without `NeverLoadedChecks`: this connector's scheduler asks again, as often as the load fails."""

    @pytest.fixture
    def engine(self, first: Engine) -> Engine:
        return first


class TestSynchronousLoads(PrefixChecks, NeverLoadedChecks, PreemptionChecks):
    stores_behind_a_load = False

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
    def engine(self, model: Path, daemon: Daemon) -> Iterator[Engine]:
        with running(model, daemon, {"key_namespace": "auto"}, prefix_caching=False, blocks=30) as engine:
            yield engine
