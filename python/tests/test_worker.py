"""The worker's side of the connector, with tensors of the CPU and no engine: copied by the client, and staged."""

import os
import pickle
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from daemon import Daemon
from store import gather, wait_for

from umbp import Client, Layout, StepPlan, Worker, engine_descriptor
from umbp.vllm import staging
from umbp.vllm.messages import UmbpWorkerMetadata
from umbp.vllm.staging import Staging
from umbp.vllm.stats import UmbpStats

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


@pytest.fixture(params=["direct", "staged"])
def engine(request: pytest.FixtureRequest, daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    monkeypatch.setattr(staging, "BUFFER_BYTES", 3 * 2 * STRIDE)
    engine = Engine(daemon, staged=request.param == "staged")
    wait_for(lambda: engine.client.clear()[1] == 0, "the end of all uses")
    yield engine
    engine.close()


def test_what_a_step_stored_another_loads(engine: Engine) -> None:
    numbers = list(range(1, 9))
    assert engine.store(7, numbers, numbers) == [(7, 1, [])]
    content = [engine.block(number) for number in numbers]
    engine.load(numbers, [15 - number for number in numbers])
    assert [engine.block(15 - number) for number in numbers] == content
    assert engine.worker.take_load_errors() == []
    stats = engine.worker.take_stats()
    assert stats["store"] == {"submitted": 8, "completed": 8, "failed": 0, "num_bytes": 16 * STRIDE}
    assert stats["load"] == {"submitted": 8, "completed": 8, "failed": 0, "num_bytes": 16 * STRIDE}
    assert engine.worker.take_stats() == {}


def test_reports_of_workers_add_up() -> None:
    one, two, three = (block_hash(number) for number in (1, 2, 3))
    first = UmbpWorkerMetadata({1: (1, {(0, one)}), 2: (1, set())}, {(0, three)})
    second = UmbpWorkerMetadata({1: (1, {(0, one), (1, two)}), 3: (2, set())}, {(1, three)})
    both = first.aggregate(second)
    assert both.store_events == {1: (2, {(0, one), (1, two)}), 2: (1, set()), 3: (2, set())}
    assert both.removed == {(0, three), (1, three)}
    assert pickle.loads(pickle.dumps(both)) == both

    counts = {"submitted": 3, "completed": 2, "failed": 1, "num_bytes": 4096}
    stats = UmbpStats(data={"load": counts}).aggregate(UmbpStats(data={"load": counts, "store": {"submitted": 1}}))
    assert stats.data["load"] == {name: 2 * count for name, count in counts.items()}
    assert stats.data["store"] == {"submitted": 1, "completed": 0, "failed": 0, "num_bytes": 0}
    assert UmbpStats(data={}).aggregate(UmbpStats(data={})).is_empty()


def test_an_asynchronous_load_is_reported_when_it_has_ended(engine: Engine) -> None:
    engine.store(1, [1], [1])
    engine.load([1], [5], async_load=True)
    assert gather(engine.worker.take_finished) == ["request"]
    assert engine.block(5) == engine.block(1)
    assert engine.worker.take_finished() == []


def test_a_forked_child_leaves_the_parents_worker_alone(daemon: Daemon) -> None:
    """F11: also while another thread of the parent waits in it."""
    engine = Engine(daemon, staged=False)
    engine.store(1, [1], [1])
    daemon.hang()
    waiting = threading.Thread(target=lambda: engine.load([1], [2]))
    try:
        waiting.start()
        state = Path(f"/proc/self/task/{waiting.native_id}/stat")
        wait_for(lambda: state.read_text().rsplit(")", 1)[1].split()[0] == "S", "the wait, with the worker's lock held")
        child = os.fork()
        if child == 0:
            engine.worker.take_finished()
            engine.close()
            os._exit(0)
        ended: list[int] = []

        def has_ended() -> bool:
            ended.append(os.waitpid(child, os.WNOHANG)[0])
            return ended[-1] == child

        try:
            wait_for(has_ended, "the child's end")
        finally:
            if child not in ended:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
    finally:
        daemon.hang(False)
        waiting.join()
    engine.close()


@pytest.mark.parametrize("stage", ["_scatter", "_gather"])
def test_a_copy_that_a_device_refuses_fails_its_own_blocks_alone(
    stage: str, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A5: it is not made up for later, when the blocks are another's; and whoever comes next is served."""
    monkeypatch.setattr(staging, "BUFFER_BYTES", 3 * 2 * STRIDE)
    engine = Engine(daemon, staged=True)
    wait_for(lambda: engine.client.clear()[1] == 0, "the end of all uses")
    engine.store(1, [1, 2, 3, 4, 5, 6, 7, 8, 9], [1, 2, 3, 4, 5, 6, 7, 8, 9])
    original, calls = getattr(Staging, stage), 0

    def second_fails(*arguments: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise RuntimeError("out of memory")
        original(*arguments)

    with monkeypatch.context() as broken:
        broken.setattr(Staging, stage, second_fails)
        if stage == "_scatter":
            before = engine.block(0), engine.block(10)
            engine.load([1, 2, 3, 4, 5, 6, 7, 8, 9], [11, 12, 13, 14, 15, 1, 2, 3, 9])
            assert sorted(engine.worker.take_load_errors()) == [1, 14, 15]
            assert (engine.block(0), engine.block(10)) == before
        else:
            ended = engine.store(2, [21, 22, 23, 24, 25, 26], [1, 2, 3, 4, 5, 6])
            assert [(0, block_hash(24)) in failed for _, _, failed in ended] == [True]
            assert engine.client.lookup([key(number) for number in (21, 24, 25, 26)]) == [True, False, False, False]
    kept = engine.block(14)
    engine.load([9], [10])
    assert engine.worker.take_load_errors() == []
    assert engine.block(10) == engine.block(9)
    assert engine.block(14) == kept, "a failed load is not made up for"
    engine.close()


def test_exactly_the_failed_blocks_are_reported_once(engine: Engine) -> None:
    """A3."""
    engine.store(1, [1, 3], [1, 3])
    engine.load([1, 2, 3], [5, 6, 7])
    assert engine.worker.take_load_errors() == [6]
    assert engine.worker.take_load_errors() == []


def test_preempted_requests_touch_nothing_any_more(engine: Engine, daemon: Daemon) -> None:
    """B1."""
    engine.store(1, [1], [1])
    before = engine.block(5)
    daemon.hang()
    try:
        engine.load([1], [5], async_load=True)
        engine.worker.handle_preemptions(StepPlan(preempted=["request"]))
        assert engine.block(5) == before
        assert engine.worker.take_finished() == []
        assert engine.worker.take_load_errors() == []
    finally:
        daemon.hang(False)


def test_a_hung_daemon_ends_loads_in_time(engine: Engine, daemon: Daemon) -> None:
    """B7, D4."""
    daemon.hang()
    try:
        engine.load([1, 2], [5, 6])
        assert engine.worker.take_load_errors() == [5, 6]
    finally:
        daemon.hang(False)


def test_a_closed_worker_does_and_reports_nothing(engine: Engine) -> None:
    engine.worker.close()
    engine.worker.close()
    engine.load([1], [5])
    engine.worker.store(StepPlan(store_event=1, stores=[("request", [(0, block_hash(1), 1, None, 0)])]))
    assert engine.worker.take_load_errors() == []
    assert engine.worker.take_store_events() == []


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


def test_failures_are_told_by_request_where_blocks_do_not_tell(daemon: Daemon) -> None:
    """I4."""
    engine = Engine(daemon, staged=False, by_request=True)
    engine.load([77], [5], async_load=True)
    assert gather(engine.worker.take_finished) == ["request"]
    assert engine.worker.take_failed_requests() == ["request"]
    assert engine.worker.take_load_errors() == []
    engine.close()


def test_ranks_of_equal_bytes_share_a_key_and_others_do_not(daemon: Daemon) -> None:
    """I5: MLA is stored once."""
    places = [Place((4, 1, 1, 1), index, 4) for index in range(4)] + [Place((4, 1, 1, 1), 2, 1)]
    engines = [Engine(daemon, staged=False, place=place) for place in places]
    engines[0].client.clear()
    before = daemon.status()["stored"]
    for number, engine in enumerate(engines):
        engine.store(number, [50], [1])
    assert daemon.status()["stored"] - before == 2
    engines[3].load([50], [5])
    assert engines[3].block(5) == engines[0].block(1)
    for engine in engines:
        engine.close()


def test_blocks_that_left_the_store_are_news(engine: Engine) -> None:
    engine.store(1, [90], [1])
    wait_for(lambda: engine.client.clear()[1] == 0, "the end of all uses")
    removed: list[tuple[int, bytes]] = []

    def any_news() -> bool:
        removed.extend(engine.worker.take_removed())
        return bool(removed)

    wait_for(any_news, "the news of a removal")
    assert removed == [(0, block_hash(90))]


def test_a_step_travels_between_processes_unchanged() -> None:
    step = StepPlan(
        async_load=True,
        store_event=5,
        loads=[("a", [(0, block_hash(1), 3), (2, b"\x07", 0)])],
        stores=[("b", [(1, block_hash(2), 9, None, 0), (1, block_hash(3), 10, block_hash(2), 1)])],
        preempted=["c"],
    )
    copy = pickle.loads(pickle.dumps(step))
    assert (copy.loads, copy.stores, repr(copy)) == (step.loads, step.stores, repr(step))
    assert copy.to_bytes() == step.to_bytes()
    assert pickle.loads(pickle.dumps(StepPlan())).to_bytes() == StepPlan().to_bytes()


def test_bytes_that_are_no_step_of_this_version_are_refused() -> None:
    step = StepPlan(loads=[("a", [(0, block_hash(1), 3)])]).to_bytes()
    for spoiled in (step[:-1], step + b"\0", step[:8] + b"x" + step[9:], b""):
        with pytest.raises(ValueError, match="not a step of this version"):
            StepPlan.from_bytes(spoiled)


def test_every_property_of_an_engine_separates_blocks() -> None:
    """H3, H6."""
    base: dict[str, Any] = {
        "key_namespace": None,
        "model": "m",
        "revision": None,
        "block_hash": "sha256",
        "kv_layout": "HND",
        "kv_dtype": "fp8_e4m3",
        "block_size": 16,
        "sizes": (1, 1, 1, 1),
        "groups": [("FullAttentionSpec", 16, [("layer", {"head_size": "64"})])],
        "drafter": None,
        "extra": {},
    }
    others = {
        "key_namespace": "team",
        "model": "n",
        "revision": "",
        "block_hash": "xxhash",
        "kv_layout": "NHD",
        "kv_dtype": "fp8_e5m2",
        "block_size": 32,
        "sizes": (2, 1, 1, 1),
        "groups": [("FullAttentionSpec", 16, [("layer", {"head_size": "128"})])],
        "drafter": ("eagle", None, None),
        "extra": {"quantization": "awq"},
    }
    descriptors = [engine_descriptor(**base)]
    descriptors += [engine_descriptor(**(base | {name: value})) for name, value in others.items()]
    assert all(first != second for i, first in enumerate(descriptors) for second in descriptors[:i])
