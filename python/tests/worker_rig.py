"""A worker's side with tensors of its own, for tests without an engine."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from daemon import Daemon
from store import wait_for

from umbp import Client, Layout, StepPlan, Worker
from umbp.vllm.staging import Staging

BLOCKS, NUMBERS = 16, 256
STRIDE = NUMBERS * 4
LAYERS = ("first", "second")
DESCRIPTOR = {"made by": "tests of the worker"}
TIMEOUT_MS = 1000


Ended = tuple[int, int, list[tuple[int, bytes]]]
"""A store event, its workers, and what failed."""


@dataclass
class Place:
    sizes: tuple[int, int, int, int] = (1, 1, 1, 1)
    index: int = 0
    replicas: int = 1


LAYOUT: Any = None
"""A staging has its own."""


def key(number: int) -> str:
    return f"umbp:vllm:v1:staged:tp0:pcp0:dcp0:pp0:g0:{block_hash(number).hex()}"


def store_blocks_of(moved: Staging) -> Callable[[Any, list[str], list[int], list[int]], int]:
    """Stores of chains of one block."""
    return lambda layout, keys, blocks, groups: moved.store_blocks(
        layout, keys, blocks, groups, [None] * len(keys), [0] * len(keys)
    )


def block_hash(number: int) -> bytes:
    return number.to_bytes(32, "big")


class Engine:
    """A worker and its tensors."""

    def __init__(self, daemon: Daemon, staged: bool, place: Place | None = None, by_request: bool = False) -> None:
        self.tensors = {layer: torch.randn(BLOCKS, NUMBERS) for layer in LAYERS}
        layers = [(layer, 0, STRIDE, STRIDE, index * STRIDE) for index, layer in enumerate(LAYERS)]
        layout = Layout(layers, {name: (tensor.data_ptr(), STRIDE) for name, tensor in self.tensors.items()})
        place = place or Place()
        self.client = Client(daemon.socket, DESCRIPTOR, "staged", timeout_ms=TIMEOUT_MS, job_timeout_ms=TIMEOUT_MS)
        assert self.client.wait_attached(10_000)
        how: dict[str, Any] = {
            "place": place,
            "report_failed_requests": by_request,
            "events": True,
            "timeout_ms": TIMEOUT_MS,
        }
        if staged:
            self.staging = moved = Staging(self.client, layout, self.tensors, [0])
            self.worker = Worker.staged(moved, self.client, "staged", **how)
        else:
            ranges = [(tensor.data_ptr(), BLOCKS * STRIDE) for tensor in self.tensors.values()]
            self.worker = Worker(daemon.socket, DESCRIPTOR, layout=layout, blocks=BLOCKS, ranges=ranges, **how)

    def store(
        self, event: int, numbers: list[int], blocks: list[int]
    ) -> list[tuple[int, int, list[tuple[int, bytes]]]]:
        """Until the event has ended."""
        rows = [
            (0, block_hash(n), block, block_hash(numbers[depth - 1]) if depth else None, depth)
            for depth, (n, block) in enumerate(zip(numbers, blocks, strict=True))
        ]
        self.worker.store(StepPlan(store_event=event, stores=[("request", rows)]))
        ended: list[Ended] = []

        def has_ended() -> bool:
            self.worker.take_finished()
            ended.extend(self.worker.take_store_events())
            return bool(ended)

        wait_for(has_ended, "the end of a store")
        return ended

    def load(self, numbers: list[int], blocks: list[int], async_load: bool = False) -> None:
        rows = [(0, block_hash(n), block) for n, block in zip(numbers, blocks, strict=True)]
        step = StepPlan(async_load=async_load, loads=[("request", rows)])
        self.worker.handle_preemptions(step)
        self.worker.start_load(step)
        for _ in LAYERS:
            self.worker.wait_for_layer_load()

    def block(self, block: int) -> list[list[float]]:
        return [self.tensors[layer][block].tolist() for layer in LAYERS]

    def close(self) -> None:
        self.worker.close()
        self.client.close()
