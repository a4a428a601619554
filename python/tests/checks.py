"""What must hold for any connector, with a real engine. A test's module derives a class for each way to start one."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
from conftest import CROWD, CROWD_TOKENS, A, B, Plain
from daemon import Daemon
from engine import Engine, EngineOptions
from store import Store, wait_for

TIMEOUT_MS = 1000
"""The connector's, in these tests."""
HOLD_MS = 300
"""Short, since what is held cannot be cleared."""
STEP_S_MAX = (TIMEOUT_MS + 900) / 1000
"""One time-out and what a busy machine takes besides (measured: up to 0.4 s): less than a second time-out."""
KILLED_AFTER_S = (0.0, 0.003, 0.008, 0.02, 0.05)
"""The daemon dies at these moments after a request's start."""


def check_prefixes(engine: Engine, plain: Plain) -> None:
    """Nothing of A, all whole blocks of A, what B shares with it, and A again; the tokens are those of no connector."""
    cached = []
    for prompt, expected in ((A, plain.a), (A, plain.a), (B, plain.b), (A, plain.a)):
        if engine.options.prefix_caching:
            engine.forget()
        answer = engine.one(prompt)
        assert answer.tokens == expected
        cached.append(answer.cached)
    assert cached == [0, 288, 192, 288]


@contextmanager
def closing(model: Path, options: EngineOptions, daemon: Daemon | None = None) -> Iterator[Engine]:
    """An engine, which ends as a person would end it, also after a failure; attached to the daemon meanwhile."""
    engine = Engine(model, options)
    attached = int(daemon is not None)
    counted = daemon or SimpleNamespace(engines=0)
    counted.engines += attached
    try:
        yield engine
    finally:
        counted.engines -= attached
        if engine.alive:
            engine.close()


class PrefixChecks:
    """Tokens and hits, with the engine's own prefix cache emptied in between."""

    stores_behind_a_load = True
    """What a request computes in the step of its load is stored."""

    @pytest.fixture(autouse=True)
    def _anew(self, engine: Engine, store: Store) -> None:
        engine.forget()
        store.clear()

    def test_shared_prefixes_are_loaded_and_the_tokens_stay(self, engine: Engine, plain: Plain) -> None:
        check_prefixes(engine, plain)

    def test_blocks_are_stored_once_and_loaded_as_often_as_they_hit(
        self, engine: Engine, daemon: Daemon, store: Store
    ) -> None:
        before = daemon.status()
        for prompt in (A, A, B, A):
            engine.forget()
            engine.one(prompt)
        # Nine blocks of A, and three of B that A does not have.
        stored = engine.hashes(B) if self.stores_behind_a_load else engine.hashes(A)
        store.await_blocks(stored)
        after = daemon.status()
        moved = {name: after[name] - before[name] for name in ("stored", "acquired")}
        assert moved == {"stored": len(set(stored + engine.hashes(A))), "acquired": 9 + 6 + 9}

    def test_blocks_with_other_bytes_lead_to_other_tokens(self, engine: Engine, store: Store, plain: Plain) -> None:
        """The negative control: what is loaded is what is used."""
        engine.one(A)
        store.spoil(engine.hashes(A))
        engine.forget()
        answer = engine.one(A)
        assert answer.cached == 288
        assert answer.tokens != plain.a

    def test_a_block_that_fails_to_load_is_computed(self, engine: Engine, store: Store, plain: Plain) -> None:
        """A1, A2, A3."""
        engine.one(A)
        store.shorten(engine.hashes(A), 3)
        failed = engine.metric("vllm:umbp_transfer_failed", operation="load")
        engine.forget()
        assert engine.one(A).tokens == plain.a
        assert engine.metric("vllm:umbp_transfer_failed", operation="load") - failed == 1
        engine.forget()
        assert engine.one(B).tokens == plain.b

    def test_requests_given_up_at_any_step_leave_nothing_behind(
        self, engine: Engine, daemon: Daemon, store: Store, plain: Plain
    ) -> None:
        """B3, B4. `forget` and `clear` succeed only when no block is pinned any more, on either side."""
        for step in (0, 1, 2, 5):
            engine.abandon([A, B], step)
            engine.forget()
        engine.one(A)
        store.await_blocks(engine.hashes(A))
        for step in (0, 1, 2, 5):
            engine.forget()
            engine.abandon([A, B], step)
        engine.forget()
        store.clear()
        assert engine.one(A).tokens == plain.a

    def test_a_request_given_up_while_its_daemon_hangs_leaves_nothing_behind(
        self, engine: Engine, daemon: Daemon, plain: Plain
    ) -> None:
        """B6."""
        engine.one(A)
        engine.forget()
        daemon.hang()
        try:
            engine.abandon([A], 1)
            engine.forget()
        finally:
            daemon.hang(False)
        daemon.await_engines()
        assert engine.one(A).tokens == plain.a

    def test_what_the_daemon_forgets_is_computed_and_stored_again(
        self, engine: Engine, daemon: Daemon, plain: Plain
    ) -> None:
        cached = []
        for prompt, restart in ((A, True), (A, False), (A, False)):
            if restart:
                engine.one(A)
                daemon.kill()
                daemon.start()
                daemon.await_engines()
            engine.forget()
            answer = engine.one(prompt)
            assert answer.tokens == plain.a
            cached.append(answer.cached)
        assert cached == [0, 288, 288]

    def test_a_daemon_that_dies_under_a_request_changes_no_token(
        self, engine: Engine, daemon: Daemon, plain: Plain
    ) -> None:
        """B6."""
        engine.one(A)
        engine.forget()
        run = engine.generate([A], at_step={2: daemon.kill, 6: daemon.start})
        assert run.answers[0].tokens == plain.a
        daemon.await_engines()
        engine.forget()
        # It hits already if the request came to compute its blocks, and to store them, after the new daemon's start.
        assert engine.one(A).tokens == plain.a
        engine.forget()
        answer = engine.one(A)
        assert (answer.tokens, answer.cached) == (plain.a, 288)

    def test_a_daemon_that_dies_at_any_moment_changes_no_token(
        self, engine: Engine, daemon: Daemon, plain: Plain
    ) -> None:
        for delay_s in KILLED_AFTER_S:
            engine.one(A)
            engine.forget()
            killer = threading.Timer(delay_s, daemon.kill)
            run = engine.generate([A, B], at_step={0: killer.start})
            killer.join()
            assert [answer.tokens for answer in run.answers] == [plain.a, plain.b]
            assert run.step_s < STEP_S_MAX
            daemon.start()
            daemon.await_engines()
            engine.forget()

    def test_a_hung_daemon_holds_no_step_up(self, engine: Engine, daemon: Daemon, plain: Plain) -> None:
        """B7, D4."""
        engine.one(A)
        engine.forget()
        daemon.hang()
        try:
            run = engine.generate([A, B])
            assert [answer.tokens for answer in run.answers] == [plain.a, plain.b]
            assert run.step_s < STEP_S_MAX
            engine.forget()
            run = engine.generate([A])
            assert run.answers[0].tokens == plain.a
            assert run.step_s < STEP_S_MAX
        finally:
            daemon.hang(False)
        daemon.await_engines()
        engine.forget()
        engine.one(A)
        engine.forget()
        assert engine.one(A).cached == 288

    def test_a_daemon_that_hangs_under_requests_changes_no_token(
        self, engine: Engine, daemon: Daemon, plain: Plain
    ) -> None:
        engine.one(A)
        engine.forget()
        try:
            run = engine.generate([A, B], at_step={1: daemon.hang})
        finally:
            daemon.hang(False)
        assert [answer.tokens for answer in run.answers] == [plain.a, plain.b]
        assert run.step_s < STEP_S_MAX
        daemon.await_engines()


class NeverLoadedChecks:
    """Of a connector that does not ask for ever for what never loads."""

    def test_a_prompt_whose_blocks_are_found_and_never_load_is_computed(
        self, engine: Engine, store: Store, plain: Plain
    ) -> None:
        """A1, A2: without its first block all of a load is for nothing, and the engine asks for a match anew."""
        engine.one(A)
        store.shorten(engine.hashes(A), 0)
        failed = engine.metric("vllm:umbp_transfer_failed", operation="load")
        engine.forget()
        assert engine.one(A).tokens == plain.a
        assert engine.metric("vllm:umbp_transfer_failed", operation="load") - failed == 1, "it was tried once"


class PreemptionChecks:
    """An engine of 30 blocks, too few for its requests."""

    def test_preempted_requests_have_the_tokens_of_solo_runs(self, engine: Engine, store: Store, plain: Plain) -> None:
        """B1, B2."""
        engine.forget()
        store.clear()
        preemptions = 0
        for _ in range(3):
            run = engine.generate(CROWD, max_tokens=CROWD_TOKENS)
            assert [answer.tokens for answer in run.answers] == plain.crowd
            preemptions += run.preemptions
            engine.forget()
        assert preemptions > 0, "nothing was preempted: the test says nothing"
        wait_for(lambda: store.client.clear()[1] == 0, "the end of all uses")


class NoPrefixCacheChecks:
    """The engine's own prefix cache is off, and the daemon starts after it."""

    @pytest.fixture(scope="class")
    def daemon(self, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
        daemon = Daemon(tmp_path_factory.mktemp("late"))
        yield daemon
        daemon.stop()

    def test_an_engine_without_a_daemon_computes_and_hits_once_there_is_one(
        self, engine: Engine, daemon: Daemon, plain: Plain
    ) -> None:
        assert engine.one(A).tokens == plain.a
        daemon.start()
        daemon.await_engines()
        check_prefixes(engine, plain)
