"""Another client of an engine's namespace: sees what the engine stored, and can spoil it."""

import ctypes
import mmap
import os
import time
from collections.abc import Callable, Mapping, Sequence

from daemon import Daemon

from umbp import Client

BLOCK_BYTES = 4 * 2 * 32 * 128 * 4
"""The tiny model's: layers, KV heads, tokens, twice the head's width, bytes of a number."""
BLOCKS_MAX = 64
DEADLINE_S = 30.0


def wait_for(condition: Callable[[], bool], what: str) -> None:
    """Looks again until the condition holds; fails at the deadline."""
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not happen within {DEADLINE_S} s"
        time.sleep(0.01)


def gather(news: Callable[[], Sequence[str]]) -> list[str]:
    """The first news that is any."""
    taken: list[str] = []

    def any_news() -> bool:
        taken.extend(news())
        return bool(taken)

    wait_for(any_news, "news")
    return taken


class Store:
    """Names blocks by their hashes; rank 0, group 0."""

    def __init__(self, daemon: Daemon, descriptor: Mapping[str, str], namespace: str) -> None:
        self._namespace = namespace
        self._memory = mmap.mmap(-1, BLOCKS_MAX * BLOCK_BYTES)
        self._base = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        self.client = Client(daemon.socket, descriptor, namespace, name="test", timeout_ms=10_000)
        self.client.register(self._base, len(self._memory))

    def key(self, block_hash: bytes) -> str:
        return f"umbp:vllm:v1:{self._namespace}:tp0:pcp0:dcp0:pp0:g0:{block_hash.hex()}"

    def await_blocks(self, hashes: Sequence[bytes]) -> None:
        """Waits until all of them are there."""
        keys = [self.key(block_hash) for block_hash in hashes]
        wait_for(lambda: all(self.client.lookup(keys)), "the store of all blocks")

    def clear(self) -> None:
        """Waits for the daemon, and until nothing of the namespace is in use or left."""
        assert self.client.wait_attached(10_000)
        wait_for(lambda: self.client.clear()[1] == 0, "the end of all uses")

    def payloads(self, hashes: Sequence[bytes]) -> list[bytes]:
        """The bytes of blocks that are there."""
        keys = [self.key(block_hash) for block_hash in hashes]
        ended = self.client.wait(self.client.load(keys, self._ranges([BLOCK_BYTES] * len(keys))), 10_000)
        assert ended is not None
        assert set(ended.results) == {"done"}
        return [self._memory[i * BLOCK_BYTES : (i + 1) * BLOCK_BYTES] for i in range(len(keys))]

    def replace(self, hashes: Sequence[bytes], payloads: Sequence[bytes]) -> None:
        """Forgets all, and stores these bytes under these hashes."""
        self.clear()
        for index, payload in enumerate(payloads):
            self._memory[index * BLOCK_BYTES : index * BLOCK_BYTES + len(payload)] = payload
        keys = [self.key(block_hash) for block_hash in hashes]
        parents = [None, *keys[:-1]]
        ranges = self._ranges([len(payload) for payload in payloads])
        ended = self.client.wait(self.client.store(keys, ranges, parents, list(range(len(keys)))), 10_000)
        assert ended is not None
        assert set(ended.results) == {"done"}

    def spoil(self, hashes: Sequence[bytes]) -> None:
        """Other bytes of the right length under every hash: finite numbers, but not the keys and values."""
        self.await_blocks(hashes)
        noise = bytes(byte & 0x3F for byte in os.urandom(BLOCK_BYTES))
        self.replace(hashes, [noise] * len(hashes))

    def shorten(self, hashes: Sequence[bytes], index: int) -> None:
        """One block has another length than the engine's: a lookup finds it, and no load succeeds."""
        self.await_blocks(hashes)
        payloads = self.payloads(hashes)
        payloads[index] = payloads[index][:4096]
        self.replace(hashes, payloads)

    def close(self) -> None:
        self.client.close()

    def _ranges(self, lengths: Sequence[int]) -> list[list[tuple[int, int]]]:
        return [[(self._base + index * BLOCK_BYTES, length)] for index, length in enumerate(lengths)]
