"""Copies through host buffers, where a device, a daemon or a queue refuses."""

import time
from collections.abc import Iterator

import pytest
import torch
from daemon import Daemon
from store import wait_for
from worker_rig import LAYOUT, STRIDE, TIMEOUT_MS, Engine, block_hash, key, store_blocks_of

from umbp import StepPlan
from umbp.vllm import staging


@pytest.fixture
def staged(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    monkeypatch.setattr(staging, "BUFFER_BYTES", 3 * 2 * STRIDE)
    engine = Engine(daemon, staged=True)
    wait_for(lambda: engine.client.clear()[1] == 0, "the end of all uses")
    yield engine
    engine.close()


def out_of_memory_once(monkeypatch: pytest.MonkeyPatch, staged: Engine, copy: str) -> None:
    """The next gather or scatter fails as a device's does."""
    whole = getattr(staged.staging, copy)

    def fails(*arguments: object) -> None:
        monkeypatch.setattr(staged.staging, copy, whole)
        raise torch.OutOfMemoryError("no memory left on the device")

    monkeypatch.setattr(staged.staging, copy, fails)


def await_loads(engine: Engine, names: set[str]) -> None:
    """Until all of these requests are told to have ended."""
    left = set(names)

    def none_left() -> bool:
        left.difference_update(engine.worker.take_finished())
        return not left

    wait_for(none_left, f"the end of {names}")


def test_a_scatter_that_fails_concerns_its_own_wave(staged: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A3: the load that is waited for is another than the one that fails."""
    numbers = list(range(1, 9))
    staged.store(1, numbers, numbers)
    out_of_memory_once(monkeypatch, staged, "_scatter")
    for name, rows in (("a", [(1, 9)]), ("b", [(2, 10), (3, 11)])):
        loads = [(name, [(0, block_hash(number), block) for number, block in rows])]
        staged.worker.start_load(StepPlan(async_load=True, loads=loads))
    await_loads(staged, {"a", "b"})
    failed = staged.worker.take_load_errors()
    assert failed in ([9], [10, 11])
    assert all(staged.block(block) == staged.block(block - 8) for block in (9, 10, 11) if block not in failed)
    # The engine computes the failed ones anew, and nobody writes them after.
    for block in failed:
        staged.tensors["first"][block] = block
    staged.load([4, 5, 6, 7], [12, 13, 14, 15])
    assert staged.worker.take_load_errors() == []
    assert all((staged.tensors["first"][block] == block).all() for block in failed)
    assert [staged.block(block) for block in (12, 13, 14, 15)] == [staged.block(number) for number in (4, 5, 6, 7)]


def test_a_gather_that_fails_concerns_its_own_wave(staged: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    staged.store(1, [20], [1])
    out_of_memory_once(monkeypatch, staged, "_gather")
    assert staged.store(2, [21], [2]) == [(2, 1, [(0, block_hash(21))])]
    staged.load([20], [9])
    assert staged.worker.take_load_errors() == []
    assert staged.block(9) == staged.block(1)
    assert staged.store(3, [21], [2]) == [(3, 1, [])]


def test_a_job_that_python_fails_to_tell_of_writes_nothing_after(
    staged: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    staged.store(1, [1, 2], [1, 2])
    whole = staged.staging.wait

    def fails(job: int, timeout_ms: int) -> None:
        monkeypatch.setattr(staged.staging, "wait", whole)
        raise RuntimeError("the wait itself fails")

    monkeypatch.setattr(staged.staging, "wait", fails)
    staged.load([1], [9])
    assert staged.worker.take_load_errors() == [9]
    before = staged.block(9)
    staged.load([2], [10])
    assert (staged.block(9), staged.block(10)) == (before, staged.block(2))
    assert staged.staging._jobs == {}


def test_what_waits_for_a_buffer_ends_in_time(staged: Engine, daemon: Daemon) -> None:
    """D4: of six waves two have a buffer; the time of all began when their job did."""
    daemon.hang()
    try:
        began = time.monotonic()
        store_blocks_of(staged.staging)(LAYOUT, [key(n) for n in range(15)], list(range(15)), [0] * 15)
        staged.load([1, 2, 3, 4], [9, 10, 11, 12])
        assert time.monotonic() - began < 1.5 * TIMEOUT_MS / 1000
        assert staged.worker.take_load_errors() == [9, 10, 11, 12]
        loads = [("a", [(0, block_hash(n), n) for n in range(15)])]
        staged.worker.start_load(StepPlan(async_load=True, loads=loads))
        await_loads(staged, {"a"})
        assert time.monotonic() - began < 3 * TIMEOUT_MS / 1000
    finally:
        daemon.hang(False)


def test_loads_go_before_stores_that_wait(staged: Engine) -> None:
    staged.store(1, [1], [1])
    keys = [key(n) for n in range(30, 45)]
    store = store_blocks_of(staged.staging)(LAYOUT, keys, list(range(15)), [0] * 15)
    load = staged.staging.load_blocks(LAYOUT, [key(1)], [15], [0])
    waves = staged.staging._jobs[store].waves
    loaded = staged.staging.wait(load, TIMEOUT_MS)
    assert loaded is not None
    assert loaded.results == ["done"]
    assert waves, "stores wait still"
    stored = staged.staging.wait(store, TIMEOUT_MS)
    assert stored is not None
    assert stored.results == ["done"] * 15


def test_a_queue_that_is_full_refuses(staged: Engine, daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging, "QUEUE_BLOCKS_MAX", 4)
    daemon.hang()
    try:
        first = staged.staging.load_blocks(LAYOUT, [key(1)] * 4, [1, 2, 3, 4], [0] * 4)
        for ask, word in ((staged.staging.load_blocks, "missed"), (store_blocks_of(staged.staging), "refused")):
            if word == "refused":
                ask(LAYOUT, [key(1)] * 4, [1, 2, 3, 4], [0] * 4)
            ended = staged.staging.wait(ask(LAYOUT, [key(1)], [5], [0]), 0)
            assert ended is not None
            assert ended.results == [word]
        staged.staging.cancel(first)
    finally:
        daemon.hang(False)
