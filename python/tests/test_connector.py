"""UmbpConnector, scheduler and worker in one process."""

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
from conftest import A, Plain, prompt
from daemon import Daemon
from engine import Engine, EngineOptions
from store import Store, wait_for

MODULE = "umbp.vllm"


@contextmanager
def running(model: Path, daemon: Daemon, extra: dict[str, Any], **how: Any) -> Iterator[Engine]:
    own = {"socket": str(daemon.socket), "timeout_ms": TIMEOUT_MS, "hold_ms": HOLD_MS}
    with closing(model, EngineOptions("UmbpConnector", MODULE, own | extra, **how), daemon) as engine:
        yield engine


@pytest.fixture(scope="module")
def first(model: Path, daemon: Daemon) -> Iterator[Engine]:
    with running(model, daemon, {"load_async": True, "lookup_async": True}) as engine:
        yield engine


@pytest.fixture(scope="module")
def store(daemon: Daemon, first: Engine) -> Iterator[Store]:
    store = Store(daemon, first.descriptor(), "any")
    yield store
    store.close()


class TestAsynchronousLoadsAndLookups(PrefixChecks, NeverLoadedChecks):
    @pytest.fixture
    def engine(self, first: Engine) -> Engine:
        return first


class TestSynchronousLoads(PrefixChecks, NeverLoadedChecks, PreemptionChecks):
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


class TestThroughHostBuffersWithoutPrefixCache(NoPrefixCacheChecks):
    """The tensors are the CPU's, moved as a device's would be."""

    @pytest.fixture(scope="class")
    def engine(self, model: Path, daemon: Daemon) -> Iterator[Engine]:
        how = {"prefix_caching": False, "blocks": 30, "staged": True, "events": True}
        with running(model, daemon, {"key_namespace": "late"}, **how) as engine:
            yield engine

    def test_what_is_stored_and_what_is_gone_is_news(self, engine: Engine, daemon: Daemon) -> None:
        store = Store(daemon, engine.descriptor(), "any")
        fresh = prompt(77, 100)
        engine.one(fresh)
        news: list[Any] = []

        def told(kind: str) -> list[Any]:
            """Of events of a kind, the blocks; news comes with the engine's steps."""
            engine.one(A[:20], max_tokens=2)
            news.extend(event for event in engine.events() if event.medium == "CPU")
            return [event for event in news if type(event).__name__ == kind]

        def are_stored() -> bool:
            tokens = [event.token_ids for event in told("BlockStored")]
            return all(block in tokens for block in blocks_of(fresh))

        wait_for(are_stored, "the news of three stored blocks")
        stored = {
            block_hash
            for event in told("BlockStored")
            for block_hash in event.block_hashes
            if event.token_ids in blocks_of(fresh)
        }
        assert len(stored) == 3
        store.clear()
        wait_for(
            lambda: stored <= {h for event in told("BlockRemoved") for h in event.block_hashes},
            "the news of three removed blocks",
        )
        store.close()


def blocks_of(tokens: list[int]) -> list[list[int]]:
    return [tokens[start : start + 32] for start in range(0, len(tokens) - 31, 32)]


class FakeRequest:
    """As much of vLLM's request as is told to the scheduler's machine."""

    request_id = "session"

    def __init__(self, prompt: int, tokens: int, hashes: list[bytes]) -> None:
        self.num_prompt_tokens, self.num_tokens, self.block_hashes = prompt, tokens, hashes


@pytest.mark.parametrize(
    ("later", "expected"),
    [
        (FakeRequest(40, 70, [b"1", b"2"]), True),
        (FakeRequest(40, 96, [b"1", b"2", b"3"]), True),
        (FakeRequest(40, 69, [b"1", b"2"]), False),
        (FakeRequest(70, 96, [b"1", b"2", b"3"]), False),
        (FakeRequest(40, 96, [b"1", b"other", b"3"]), False),
        (FakeRequest(40, 96, [b"1"]), False),
    ],
    ids=["as it was", "grown", "tokens dropped", "another prompt", "another hash", "hashes dropped"],
)
def test_a_request_that_has_not_merely_grown_is_told_anew(later: FakeRequest, expected: bool) -> None:
    """A session that takes further input drops tokens that it never computed, and the hashes that end in them. Under
    such a hash other bytes would be stored."""
    from umbp.vllm.scheduler import Told

    told = Told(later, 40, tokens=70, hashes=2, last_hash=b"2")  # type: ignore[arg-type]
    assert told.goes_on(later) is expected  # type: ignore[arg-type]
    told.request = FakeRequest(40, 70, [b"1", b"2"])  # type: ignore[assignment]
    assert not told.goes_on(later), "the name is another request's now"  # type: ignore[arg-type]
