"""The bindings of the client, with a real daemon."""

import ctypes
import mmap
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from daemon import Daemon
from store import gather, wait_for

from umbp import Client, Layout

NAMESPACE = "bindings"
DESCRIPTOR = {"made by": "tests of the bindings"}
BLOCK = 8192


class Memory:
    """Anonymous memory, with its address."""

    def __init__(self, length: int) -> None:
        self.map = mmap.mmap(-1, length)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.map))

    def fill(self, start: int, length: int) -> bytes:
        content = os.urandom(length)
        self.map[start : start + length] = content
        return content

    def read(self, start: int, length: int) -> bytes:
        return self.map[start : start + length]


def key(number: int, namespace: str = NAMESPACE) -> str:
    return f"umbp:vllm:v1:{namespace}:tp0:pcp0:dcp0:pp0:g0:{number:064x}"


def connect(daemon: Daemon, timeout_ms: int = 10_000) -> Client:
    client = Client(daemon.socket, DESCRIPTOR, NAMESPACE, timeout_ms=timeout_ms)
    assert client.wait_attached(10_000)
    return client


@pytest.fixture
def memory() -> Memory:
    return Memory(64 * BLOCK)


@pytest.fixture
def client(daemon: Daemon, memory: Memory) -> Iterator[Client]:
    client = connect(daemon)
    client.register(memory.address, len(memory.map))
    wait_for(lambda: client.clear()[1] == 0, "the end of all uses")
    yield client
    client.close()


def store(client: Client, keys: list[str], ranges: list[list[tuple[int, int]]]) -> list[str]:
    ended = client.wait(client.store(keys, ranges, [None] * len(keys), [0] * len(keys)), 10_000)
    assert ended is not None
    return ended.results


def load(client: Client, keys: list[str], ranges: list[list[tuple[int, int]]]) -> list[str]:
    ended = client.wait(client.load(keys, ranges), 10_000)
    assert ended is not None
    return ended.results


def test_scattered_bytes_come_back_in_another_layout(client: Client, memory: Memory) -> None:
    content = memory.fill(0, BLOCK) + memory.fill(4 * BLOCK, BLOCK)
    base = memory.address
    assert store(client, [key(1)], [[(base, BLOCK), (base + 4 * BLOCK, BLOCK)]]) == ["done"]
    assert client.lookup([key(1), key(2)]) == [True, False]
    assert load(client, [key(1)], [[(base + 8 * BLOCK, 2 * BLOCK)]]) == ["done"]
    assert memory.read(8 * BLOCK, 2 * BLOCK) == content
    counters = client.counters()
    assert (counters["blocks_stored"], counters["blocks_loaded"]) == (1, 1)


def test_each_key_has_a_result_of_its_own(client: Client, memory: Memory) -> None:
    """A1."""
    base = memory.address
    stored = [key(n) for n in range(4)]
    assert store(client, stored, [[(base + n * BLOCK, BLOCK)] for n in range(4)]) == ["done"] * 4
    assert store(client, [key(0)], [[(base, BLOCK)]]) == ["present"]
    outside = base + len(memory.map)
    cases = [
        (key(0), [(base, BLOCK)], "done"),
        (key(77), [(base + BLOCK, BLOCK)], "missed"),
        (key(1), [(base + BLOCK, BLOCK - 1)], "invalid"),
        (key(2), [(outside, BLOCK)], "invalid"),
        (key(2, "another"), [(base, BLOCK)], "invalid"),
        ("no key", [(base, BLOCK)], "invalid"),
        (key(3), [(base + 3 * BLOCK, BLOCK)], "done"),
    ]
    results = load(client, [case[0] for case in cases], [case[1] for case in cases])
    assert results == [case[2] for case in cases]
    assert client.lookup([case[0] for case in cases]) == [True, False, True, True, False, False, True]


def test_blocks_of_a_layout_are_the_runs_it_says(client: Client, memory: Memory) -> None:
    base = memory.address
    layers = [("k", 0, 1024, 1024, 0), ("v", 0, 1024, 1024, 1024)]
    layout = Layout(layers, {"k": (base, 1024), "v": (base + 32 * BLOCK, 1024)})
    assert layout.block_bytes(0) == 2048
    assert layout.block_bytes(1) is None
    assert layout.runs(2, 0) == [("k", base + 2048, 1024, 0), ("v", base + 32 * BLOCK + 2048, 1024, 1024)]
    content = memory.fill(2048, 1024), memory.fill(32 * BLOCK + 2048, 1024)
    ended = client.wait(client.store_blocks(layout, [key(1), key(2)], [2, -1], [0, 0], [None] * 2, [0, 0]), 10_000)
    assert ended is not None
    assert ended.results == ["done", "invalid"]
    assert ended.bytes == [2048, 0]
    ended = client.wait(client.load_blocks(layout, [key(1)], [5], [0]), 10_000)
    assert ended is not None
    assert (memory.read(5 * 1024, 1024), memory.read(32 * BLOCK + 5 * 1024, 1024)) == content


def test_a_layout_that_cannot_be_is_refused_by_name() -> None:
    for layers, tensors, message in (
        ([("k", 0, 1024, 1024, 0)], {}, 'layer "k" is not registered'),
        ([("k", 0, 1024, 1024, 0)], {"k": (0, 2048)}, "exceeds the configured"),
        ([("k", 0, 1024, 2048, 0)], {"k": (0, 1024)}, "cannot be"),
    ):
        with pytest.raises(ValueError, match=message):
            Layout(layers, tensors)


def test_wrong_arguments_are_refused_and_change_nothing(client: Client, memory: Memory) -> None:
    with pytest.raises(ValueError, match="ranges has 0 entries for 1 keys"):
        client.load([key(1)], [])
    with pytest.raises(ValueError, match="overlap"):
        client.register(memory.address + 1, 1)
    with pytest.raises(ValueError, match="unknown"):
        client.poll(12345)
    with pytest.raises(OverflowError):
        client.register(-1, 1)
    assert load(client, [key(1)], [[(memory.address, BLOCK)]]) == ["missed"]


def test_a_result_is_given_once(client: Client, memory: Memory) -> None:
    """B4."""
    job = client.load([key(1)], [[(memory.address, BLOCK)]])
    assert client.wait(job, 10_000) is not None
    with pytest.raises(ValueError, match="its result taken"):
        client.wait(job, 0)


def test_a_job_of_more_keys_than_a_message_takes_is_one_job(client: Client, memory: Memory) -> None:
    keys = [key(n) for n in range(20_000)]
    base = memory.address
    assert store(client, keys[-1:], [[(base, 64)]]) == ["done"]
    results = load(client, keys, [[(base, 64)]] * len(keys))
    assert results == ["missed"] * (len(keys) - 1) + ["done"]


def test_a_region_given_up_is_known_no_more(client: Client, memory: Memory) -> None:
    assert client.unregister(memory.address, 10_000)
    assert client.unregister(memory.address, 10_000)
    assert load(client, [key(1)], [[(memory.address, BLOCK)]]) == ["invalid"]


def test_removed_keys_are_told_in_their_text(client: Client, memory: Memory) -> None:
    assert store(client, [key(5)], [[(memory.address, BLOCK)]]) == ["done"]
    client.take_removed()
    assert client.clear() == (1, 0)
    assert gather(lambda: client.take_removed()[0]) == [key(5)]


def test_without_a_daemon_all_is_a_miss_at_once(tmp_path: Path, memory: Memory) -> None:
    client = Client(tmp_path / "nobody.sock", DESCRIPTOR, NAMESPACE, timeout_ms=60_000)
    client.register(memory.address, len(memory.map))
    assert not client.attached
    assert client.lookup([key(1)]) == [False]
    assert load(client, [key(1)], [[(memory.address, BLOCK)]]) == ["disconnected"]
    assert store(client, [key(1)], [[(memory.address, BLOCK)]]) == ["disconnected"]
    for ask in (client.status, client.clear):
        with pytest.raises(RuntimeError, match="not attached"):
            ask()
    client.close()
    client.close()
    with pytest.raises(RuntimeError, match="closed"):
        client.lookup([key(1)])


def refused(call: Callable[[], object]) -> None:
    with pytest.raises(RuntimeError):
        call()


@pytest.mark.parametrize("what", ["lookup", "wait", "clear", "close"])
def test_other_threads_run_while_a_call_waits(what: str, daemon: Daemon, memory: Memory) -> None:
    client = connect(daemon, timeout_ms=1000)
    client.register(memory.address, len(memory.map))
    daemon.hang()
    try:
        job = client.load([key(1)], [[(memory.address, BLOCK)]])
        call: Callable[[], object] = {
            "lookup": lambda: client.lookup([key(1)]),
            "wait": lambda: client.wait(job, 500),
            "clear": lambda: refused(client.clear),
            "close": client.close,
        }[what]
        asking = threading.Thread(target=call)
        asking.start()
        turns = 0
        while asking.is_alive():
            turns += 1
        assert turns > 1000
    finally:
        daemon.hang(False)
    if what != "close":
        assert client.wait_attached(10_000)
    client.close()


def test_a_cancelled_job_of_a_hung_daemon_ends_at_once(daemon: Daemon, memory: Memory) -> None:
    """B7."""
    client = connect(daemon, timeout_ms=60_000)
    client.register(memory.address, len(memory.map))
    daemon.hang()
    try:
        job = client.load([key(1)], [[(memory.address, BLOCK)]])
        assert client.poll(job) is None
        client.cancel(job)
        ended = client.wait(job, 5_000)
        assert ended is not None
        assert ended.results == ["cancelled"]
    finally:
        daemon.hang(False)
    client.close()


def test_a_forked_child_has_no_session_and_does_not_hang(client: Client, memory: Memory) -> None:
    assert store(client, [key(9)], [[(memory.address, BLOCK)]]) == ["done"]
    job = client.load([key(9)], [[(memory.address, BLOCK)]])
    child = os.fork()
    if child == 0:
        good = client.lookup([key(9)]) == [False] and not client.attached
        ended = client.wait(job, 1000)
        good = good and ended is not None and ended.results == ["disconnected"]
        client.close()
        os._exit(0 if good else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    ended = client.wait(job, 10_000)
    assert ended is not None
    assert ended.results == ["done"]
    assert client.lookup([key(9)]) == [True]


def test_a_closed_client_touches_nothing_whoever_else_is_in_a_call(daemon: Daemon) -> None:
    """B2: another thread waits for the job whose memory goes."""
    blocks, length = 64, 1 << 20
    memory = Memory(blocks * length)
    ranges = [[(memory.address + index * length, length)] for index in range(blocks)]
    keys = [key(1000 + index) for index in range(blocks)]
    memory.fill(0, len(memory.map))
    client = connect(daemon)
    client.register(memory.address, len(memory.map))
    assert store(client, keys, ranges) == ["done"] * blocks
    memory.map[:] = bytes(len(memory.map))
    job = client.load(keys, ranges)
    waiting = threading.Thread(target=client.wait, args=(job, 60_000))
    waiting.start()
    wait_for(lambda: memory.read(0, 64) != bytes(64), "the first bytes")
    client.close()
    assert not [name for name in threads() if name.startswith("umbp-copy")]
    seen = memory.read(0, len(memory.map))
    waiting.join()
    assert memory.read(0, len(memory.map)) == seen


def threads() -> list[str]:
    """Names of this process's threads."""
    return [(task / "comm").read_text().strip() for task in Path("/proc/self/task").iterdir()]


def test_other_threads_run_while_an_object_that_is_let_go_ends(tmp_path: Path) -> None:
    """Its threads are waited for: here one that awaits the answer of a daemon that never speaks."""
    silent = socket.socket(socket.AF_UNIX)
    silent.bind(str(tmp_path / "silent.sock"))
    silent.listen()
    turns, stop = [0], threading.Event()

    def turn() -> None:
        while not stop.is_set():
            turns[0] += 1
            time.sleep(0)

    other = threading.Thread(target=turn)
    interval = sys.getswitchinterval()
    client = Client(tmp_path / "silent.sock", DESCRIPTOR, NAMESPACE, timeout_ms=10_000)
    accepted, _ = silent.accept()
    other.start()
    # From here on nobody is made to give way.
    sys.setswitchinterval(100)
    try:
        before = turns[0]
        del client
        assert turns[0] > before
    finally:
        sys.setswitchinterval(interval)
        stop.set()
        other.join()
        accepted.close()
        silent.close()


def test_results_that_nobody_takes_are_kept_up_to_a_bound(client: Client, memory: Memory) -> None:
    missing = [key(77)], [[(memory.address, BLOCK)]]
    jobs: list[int] = []

    def load_on() -> None:
        while len(jobs) < 1 << 20:
            jobs.append(client.load(*missing))

    with pytest.raises(RuntimeError, match="results not taken, limit"):
        load_on()
    assert client.wait(jobs.pop(), 10_000) is not None
    jobs.append(client.load(*missing))
    assert all(client.wait(job, 10_000) is not None for job in jobs)
