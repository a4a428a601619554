"""A real vLLM engine in a process of its own, so that one that hangs or dies fails its test and nothing else."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any

from daemon import die_with_parent

START_S = 240.0
"""Importing the engine alone takes 20 s on two busy cores."""
ANSWER_S = 180.0

ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "PYTHONHASHSEED": "0",
    "OMP_NUM_THREADS": "2",
    # To ask the worker's process for its connector's descriptor.
    "VLLM_ALLOW_INSECURE_SERIALIZATION": "1",
}


@dataclass(frozen=True)
class EngineOptions:
    """How an engine is started."""

    connector: str | None = None
    """Class of the connector; none = without one."""
    module: str | None = None
    """Its module; none = the class is known to vLLM."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    separate: bool = False
    """Scheduler and worker in processes of their own."""
    prefix_caching: bool = True
    blocks: int | None = None
    """Number of KV blocks; none = as many as 64 MiB hold."""
    policy: str = "recompute"
    staged: bool = False
    """The worker moves blocks through host buffers, as those of a device; scheduler and worker in one process."""
    events: bool = False
    """KV events are made; in one process they can be asked for."""
    tp: int = 1
    """Workers that share each layer; with `separate`."""
    environment: Mapping[str, str] = field(default_factory=dict)
    log: Path | None = None
    """A file for what its processes write to standard output and error."""


@dataclass(frozen=True)
class Answer:
    """What one prompt led to."""

    tokens: tuple[int, ...]
    cached: int
    """Tokens that the scheduler did not plan to compute; counts failed loads too."""


@dataclass(frozen=True)
class Run:
    """One call of `generate`."""

    answers: list[Answer]
    step_s: float
    """The longest engine step."""
    preemptions: int


class Engine:
    """The parent's side of `engine_host.py`."""

    def __init__(self, model: Path, options: EngineOptions) -> None:
        self.options = options
        self._pipe, theirs = Pipe()
        host = Path(__file__).parent / "engine_host.py"
        environment = os.environ | ENVIRONMENT | dict(options.environment)
        environment["VLLM_ENABLE_V1_MULTIPROCESSING"] = str(int(options.separate))
        with contextlib.ExitStack() as files:
            output = None if options.log is None else files.enter_context(options.log.open("wb"))
            self._process = subprocess.Popen(
                [sys.executable, str(host), str(theirs.fileno()), str(model)],
                pass_fds=[theirs.fileno()],
                env=environment,
                stdout=output,
                stderr=output,
                preexec_fn=die_with_parent,
            )
        theirs.close()
        try:
            self._pipe.send(options)
            self._receive(START_S)
        except BaseException:
            self.kill()
            raise

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        max_tokens: int = 24,
        at_step: Mapping[int, Callable[[], object]] | None = None,
    ) -> Run:
        """Runs prompts side by side; `at_step` is called here before the engine's step of that number, from 0."""
        at_step = at_step or {}
        self._pipe.send(("generate", [list(p) for p in prompts], max_tokens, sorted(at_step)))
        while True:
            word, value = self._receive(ANSWER_S)
            if word == "step":
                at_step[value]()
                self._pipe.send("go on")
                continue
            run: Run = value
            return run

    def abandon(self, prompts: Sequence[Sequence[int]], step: int) -> None:
        """Begins prompts side by side, and gives them up before the engine's step of that number, from 0."""
        self._ask("abandon", [list(p) for p in prompts], step)

    def one(self, prompt: Sequence[int], **how: Any) -> Answer:
        """Runs one prompt."""
        return self.generate([prompt], **how).answers[0]

    def forget(self) -> None:
        """Empties the engine's own prefix cache."""
        self._ask("forget")

    def hashes(self, prompt: Sequence[int]) -> list[bytes]:
        """The hashes of a prompt's whole blocks."""
        hashes: list[bytes] = self._ask("hashes", list(prompt))
        return hashes

    def descriptor(self) -> dict[str, str]:
        """What must match for the bytes of UmbpConnector's blocks to mean the same."""
        descriptor: dict[str, str] = self._ask("descriptor")
        return descriptor

    def events(self) -> list[Any]:
        """KV events since the last call."""
        events: list[Any] = self._ask("events")
        return events

    def metric(self, name: str, **labels: str) -> float:
        """The sum of a metric's values with these labels."""
        value: float = self._ask("metric", name, labels)
        return value

    def close(self) -> None:
        """Ends it as a person would; a hung or failing end fails the test."""
        self._ask("close")
        assert self._process.wait(60) == 0, "the engine's process did not end well"

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def _ask(self, *question: object) -> Any:
        self._pipe.send(question)
        return self._receive(ANSWER_S)[1]

    def _receive(self, deadline_s: float) -> tuple[str, Any]:
        if not self._pipe.poll(deadline_s):
            self.kill()
            raise TimeoutError(f"the engine did not answer within {deadline_s} s")
        try:
            word, value = self._pipe.recv()
        except EOFError as error:
            raise RuntimeError(f"the engine's process ended: {self._process.wait()}") from error
        if word == "error":
            raise RuntimeError(f"in the engine: {value}")
        return word, value


def connection(fd: int) -> Connection:
    """The child's end."""
    return Connection(fd)
