"""vLLM's own UMBPStoreConnector on umbpd, one process."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import A, B, Plain
from daemon import Daemon
from engine import Engine, EngineOptions


@pytest.fixture(scope="module")
def engine(model: Path, daemon: Daemon) -> Iterator[Engine]:
    extra = {"socket": str(daemon.socket), "key_namespace": "reference", "timeout_ms": 2000}
    engine = Engine(model, EngineOptions("UMBPStoreConnector", "umbp.vllm.runtime", extra))
    yield engine
    engine.close()


def test_shared_prefixes_are_loaded_and_the_tokens_stay(engine: Engine, plain: Plain) -> None:
    cached = []
    for prompt, expected in ((A, plain.a), (A, plain.a), (B, plain.b), (A, plain.a)):
        engine.forget()
        answer = engine.one(prompt)
        assert answer.tokens == expected
        cached.append(answer.cached)
    assert cached == [0, 288, 192, 288]
