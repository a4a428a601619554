"""The worker's side of the connector, with tensors of the CPU and no engine: copied by the client, and staged."""

import os
import pickle
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from daemon import Daemon
from store import gather, wait_for
from worker_rig import STRIDE, Engine, Place, block_hash, key

from umbp import StepPlan, engine_descriptor
from umbp.vllm import staging
from umbp.vllm.messages import UmbpWorkerMetadata
from umbp.vllm.staging import Staging
from umbp.vllm.stats import UmbpStats


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
