"""Fixtures: the model, the prompts, a daemon, and the tokens of an engine without a connector."""

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.register_assert_rewrite("checks", "daemon", "store")

from daemon import Daemon  # noqa: E402
from engine import Engine, EngineOptions  # noqa: E402

VOCABULARY = 2048


@pytest.fixture(scope="session")
def model() -> Path:
    folder = os.environ.get("UMBP_TEST_MODEL")
    if folder is None:
        pytest.skip("UMBP_TEST_MODEL names no model: run `cargo xtask test-vllm`")
    return Path(folder)


def prompt(seed: int, length: int) -> list[int]:
    """The same tokens for the same seed."""
    source = random.Random(seed)
    return [source.randrange(3, VOCABULARY) for _ in range(length)]


A = prompt(1, 300)
B = A[:200] + prompt(2, 100)
CROWD = [prompt(10 + n, 280) for n in range(6)]
CROWD_TOKENS = 64
"""So long that they do not fit into 30 blocks together, and some are preempted."""


class Plain:
    """Tokens of an engine without a connector, each prompt alone."""

    def __init__(self, model: Path) -> None:
        engine = Engine(model, EngineOptions())
        self.a = self._tokens(engine, A)
        self.b = self._tokens(engine, B)
        self.crowd = [self._tokens(engine, p, CROWD_TOKENS) for p in CROWD]
        engine.close()

    def _tokens(self, engine: Engine, prompt: list[int], max_tokens: int = 24) -> tuple[int, ...]:
        engine.forget()
        return engine.one(prompt, max_tokens=max_tokens).tokens


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, exitstatus: int) -> None:
    """The line that runners of Rust's tests know."""
    count = {name: len(terminalreporter.stats.get(name, ())) for name in ("passed", "failed", "error", "skipped")}
    word = "ok" if exitstatus == 0 else "FAILED"
    terminalreporter.write_line(
        f"test result: {word}. {count['passed']} passed; {count['failed'] + count['error']} failed; "
        f"{count['skipped']} ignored; 0 measured; 0 filtered out"
    )


@pytest.fixture(scope="session")
def plain(model: Path) -> Plain:
    return Plain(model)


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """Runs at the start of each test's module; a test that ends it starts it again."""
    daemon = Daemon(tmp_path_factory.mktemp("umbpd"))
    daemon.start()
    yield daemon
    daemon.stop()
