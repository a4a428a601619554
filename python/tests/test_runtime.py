"""umbpd behind the runtime protocol of UMBPStoreConnector, with tensors of the CPU and no engine."""

import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from daemon import Daemon
from store import gather, wait_for
from vllm.distributed.kv_transfer.kv_connector.v1.umbp.data import (
    BlockLoadBatch,
    BlockStoreBatch,
    BlockTransferPlan,
    KVLayoutPlanner,
    KVRegion,
    RankTopology,
    TransferJobState,
    TransferJobStatus,
)

from umbp.vllm import staging
from umbp.vllm.runtime import SchedulerHandle, UmbpdRuntime, WorkerHandle
from umbp.vllm.session import SessionOptions
from umbp.vllm.staging import Transfers

BLOCKS, NUMBERS = 16, 256
LAYERS = ("first", "second")
STRIDE = NUMBERS * 4


def key(number: int) -> str:
    return f"umbp:vllm:v1:runtime:tp0:pcp0:dcp0:pp0:g0:{number:064x}"


def batch(numbers: list[int], blocks: list[int]) -> BlockLoadBatch:
    return BlockLoadBatch([key(n) for n in numbers], blocks, [0] * len(blocks), "request")


def stores(numbers: list[int], blocks: list[int]) -> BlockStoreBatch:
    count = len(blocks)
    hashes = [n.to_bytes(32, "big") for n in numbers]
    return BlockStoreBatch(
        [key(n) for n in numbers], blocks, [0] * count, hashes, [None] * count, [()] * count, [16] * count, "request"
    )


class Worker:
    """A worker's handle, its tensors, and the reference's own plan of ranges."""

    def __init__(self, runtime: UmbpdRuntime, staged: bool = False) -> None:
        self.planner = KVLayoutPlanner(
            [KVRegion(layer, 0, STRIDE, STRIDE, index * STRIDE) for index, layer in enumerate(LAYERS)]
        )
        topology = RankTopology()
        self.handle: WorkerHandle = runtime.create_worker_handle("runtime", topology, self.planner.describe(topology))
        self.handle._staged = staged
        self.tensors = {layer: torch.randn(BLOCKS, NUMBERS) for layer in LAYERS}
        self.planner.register_kv_caches(self.tensors)
        self.handle.register_buffers(self.tensors)

    def block(self, block: int) -> list[list[float]]:
        return [self.tensors[layer][block].tolist() for layer in LAYERS]

    def plan(self, number: int, block: int) -> BlockTransferPlan:
        return self.planner.materialize(BlockTransferPlan(key(number), block, request_id="request", group_id=0))


@pytest.fixture
def runtime(daemon: Daemon) -> UmbpdRuntime:
    return UmbpdRuntime(SessionOptions(str(daemon.socket), hold_ms=100, timeout_ms=1000))


@pytest.fixture
def scheduler(runtime: UmbpdRuntime) -> Iterator[SchedulerHandle]:
    from vllm.distributed.kv_transfer.kv_connector.v1.umbp.data import KVLayoutDescriptor

    topology = RankTopology()
    handle = runtime.create_scheduler_handle("runtime", topology, KVLayoutDescriptor((), topology))
    wait_for(handle.clear, "the end of all uses")
    yield handle
    handle.close()


@pytest.fixture
def worker(runtime: UmbpdRuntime, scheduler: SchedulerHandle) -> Iterator[Worker]:
    worker = Worker(runtime)
    yield worker
    worker.handle.close()


@pytest.fixture
def staged(runtime: UmbpdRuntime, scheduler: SchedulerHandle, monkeypatch: pytest.MonkeyPatch) -> Iterator[Worker]:
    """A worker whose tensors are moved as a device's are, through buffers of three blocks."""
    monkeypatch.setattr(staging, "BUFFER_BYTES", 3 * 2 * STRIDE)
    worker = Worker(runtime, staged=True)
    yield worker
    worker.handle.close()


def finish(worker: Worker, job: TransferJobState | None) -> TransferJobState:
    assert job is not None
    assert job.status == TransferJobStatus.RUNNING
    return worker.handle.wait(job)


def test_columns_and_plain_plans_move_the_same_bytes(worker: Worker, scheduler: SchedulerHandle) -> None:
    stored = finish(worker, worker.handle.store_blocks(stores([1, 2], [3, 4])))
    assert stored.status == TransferJobStatus.COMPLETED
    assert stored.completed_bytes == 4 * STRIDE
    assert scheduler.lookup([key(1), key(2), key(3)]) == [True, True, False]
    content = [worker.block(3), worker.block(4)]
    finish(worker, worker.handle.load([worker.plan(1, 7), worker.plan(2, 8)]))
    assert [worker.block(7), worker.block(8)] == content
    finish(worker, worker.handle.store([worker.plan(5, 7)]))
    finish(worker, worker.handle.load_blocks(batch([5, 2], [10, 11])))
    assert [worker.block(10), worker.block(11)] == content


def test_plans_without_ranges_are_taken_as_columns_and_others_declined(worker: Worker) -> None:
    plain = [BlockTransferPlan(key(1), 3, request_id="request", group_id=0)]
    stored = finish(worker, worker.handle.store_blocks(plain))
    assert stored.plans == tuple(plain)
    assert worker.handle.load_blocks([worker.plan(1, 3)]) is None
    assert worker.handle.load_blocks([BlockTransferPlan(key(1), 3)]) is None


def test_a_block_that_is_not_there_fails_alone(worker: Worker) -> None:
    """A3."""
    finish(worker, worker.handle.store_blocks(stores([1, 3], [1, 3])))
    loaded = finish(worker, worker.handle.load_blocks(batch([1, 2, 3], [5, 6, 7])))
    assert loaded.status == TransferJobStatus.FAILED
    assert (loaded.completed_keys, loaded.failed_keys) == ({key(1), key(3)}, {key(2)})
    assert loaded.failed_block_ids == {6}
    assert loaded.error is not None
    assert "1 of 3 blocks failed" in loaded.error


def test_a_poll_answers_once_ended_and_again_what_it_answered(worker: Worker) -> None:
    job = worker.handle.store_blocks(stores([1], [1]))
    assert job is not None
    wait_for(lambda: worker.handle.poll(job) is not None, "the end of a store")
    assert job.status == TransferJobStatus.COMPLETED
    assert worker.handle.poll(job) is job
    assert worker.handle.wait(job) is job
    assert worker.handle.cancel(job) is job
    assert job.status == TransferJobStatus.COMPLETED


def test_a_hung_daemon_ends_a_wait_in_time_with_failed_blocks(worker: Worker, daemon: Daemon) -> None:
    """B7, D4."""
    daemon.hang()
    try:
        job = worker.handle.load_blocks(batch([1, 2], [5, 6]))
        assert job is not None
        cancelled = worker.handle.load_blocks(batch([3], [7]))
        assert cancelled is not None
        assert worker.handle.cancel(cancelled).status == TransferJobStatus.CANCELLED
        assert worker.handle.wait(job).failed_block_ids == {5, 6}
    finally:
        daemon.hang(False)


def test_published_keys_are_reported_once_when_no_tier_has_them(worker: Worker, scheduler: SchedulerHandle) -> None:
    finish(worker, worker.handle.store_blocks(stores([9], [1])))
    job = finish(worker, worker.handle.store_blocks(stores([1, 2], [1, 2])))
    worker.handle.publish(job)
    assert worker.handle.take_evicted_keys() == []
    wait_for(scheduler.clear, "the end of all uses")
    assert sorted(gather(worker.handle.take_evicted_keys)) == [key(1), key(2)]
    assert worker.handle.take_evicted_keys() == []


def test_a_wait_ends_with_the_time_of_its_job(worker: Worker, daemon: Daemon) -> None:
    """D4: two jobs of a step together take one time-out, and none is an error."""
    daemon.hang()
    try:
        began = time.monotonic()
        jobs = [worker.handle.load_blocks(batch([n], [n])) for n in (1, 2, 3)]
        assert [finish(worker, job).status != TransferJobStatus.COMPLETED for job in jobs] == [True] * 3
        assert time.monotonic() - began < 1.5
    finally:
        daemon.hang(False)


class Stubborn:
    """Its cancelled jobs have a copy under way for two rounds more."""

    def __init__(self, transfers: Transfers) -> None:
        self._transfers = transfers
        self.rounds = 0

    def load_blocks(self, *arguments: Any) -> int:
        return self._transfers.load_blocks(*arguments)

    def store_blocks(self, *arguments: Any) -> int:
        return self._transfers.store_blocks(*arguments)

    def wait(self, job: int, timeout_ms: int) -> Any:
        self.rounds += 1
        return None if self.rounds < 4 else self._transfers.wait(job, timeout_ms)

    def cancel(self, job: int) -> None:
        self._transfers.cancel(job)


def test_a_cancelled_job_is_waited_for_as_long_as_it_copies(worker: Worker, caplog: pytest.LogCaptureFixture) -> None:
    """B1: its blocks are given back no sooner, and nothing is raised."""
    worker.handle._transfers = stubborn = Stubborn(worker.handle._transfers)
    job = worker.handle.load_blocks(batch([1], [5]))
    finish(worker, job)
    assert stubborn.rounds == 4
    assert sum("copy under way" in record.message for record in caplog.records) == 2


def test_a_closed_worker_fails_blocks_and_no_step(worker: Worker) -> None:
    job = worker.handle.load_blocks(batch([1], [5]))
    assert job is not None
    worker.handle._client.close()
    assert worker.handle.wait(job).failed_block_ids == {5}
    late = worker.handle.load_blocks(batch([1], [5]))
    assert late is not None
    assert late.failed_block_ids == {5}


def test_without_memory_to_move_through_blocks_fail(
    runtime: UmbpdRuntime, scheduler: SchedulerHandle, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object, **__: object) -> None:
        raise RuntimeError("cannot pin memory")

    monkeypatch.setattr(staging.Staging, "__init__", refused)
    worker = Worker(runtime, staged=True)
    job = worker.handle.load_blocks(batch([1], [5]))
    assert job is not None
    assert job.failed_block_ids == {5}
    worker.handle.close()


def test_keys_that_a_restarted_daemon_lost_are_reported(
    worker: Worker, scheduler: SchedulerHandle, daemon: Daemon
) -> None:
    """D2."""
    job = finish(worker, worker.handle.store_blocks(stores([70, 71], [1, 2])))
    worker.handle.publish(job)
    assert worker.handle.take_evicted_keys() == []
    daemon.kill()
    daemon.start()
    assert worker.handle._client.wait_attached(10_000)
    assert sorted(gather(worker.handle.take_evicted_keys)) == [key(70), key(71)]


def test_a_hung_daemon_does_not_hold_up_the_question_what_is_gone(worker: Worker, daemon: Daemon) -> None:
    job = finish(worker, worker.handle.store_blocks(stores([80], [1])))
    worker.handle.publish(job)
    daemon.hang()
    try:
        began = time.monotonic()
        for _ in range(100):
            assert worker.handle.take_evicted_keys() == []
        assert time.monotonic() - began < 0.5
    finally:
        daemon.hang(False)


def test_a_tensor_beyond_what_is_registered_is_refused_by_name(runtime: UmbpdRuntime) -> None:
    planner = KVLayoutPlanner([KVRegion("first", 0, STRIDE, STRIDE, 0)])
    topology = RankTopology()
    handle = runtime.create_worker_handle("runtime", topology, planner.describe(topology))
    with pytest.raises(ValueError, match='"first" is not registered'):
        handle.register_buffers({"other": torch.zeros(BLOCKS, NUMBERS)})
    handle.close()


def test_blocks_through_buffers_are_those_of_direct_copies(worker: Worker, staged: Worker) -> None:
    """More blocks than the buffers hold, from and to either side."""
    numbers = list(range(1, 16))
    blocks = [(3 * number) % 16 for number in numbers]
    assert finish(staged, staged.handle.store_blocks(stores(numbers, blocks))).status == TransferJobStatus.COMPLETED
    content = [staged.block(block) for block in blocks]
    assert finish(worker, worker.handle.load_blocks(batch(numbers, numbers))).status == TransferJobStatus.COMPLETED
    assert [worker.block(block) for block in numbers] == content
    for tensor in staged.tensors.values():
        tensor.zero_()
    assert finish(staged, staged.handle.load_blocks(batch(numbers, numbers))).status == TransferJobStatus.COMPLETED
    assert [staged.block(block) for block in numbers] == content


def test_a_block_that_fails_through_buffers_fails_alone_and_is_not_touched(staged: Worker) -> None:
    """A3."""
    finish(staged, staged.handle.store_blocks(stores([1, 3], [1, 3])))
    content = staged.block(1), staged.block(6), staged.block(3)
    loaded = finish(staged, staged.handle.load_blocks(batch([1, 2, 3, 1], [5, 6, 7, 99])))
    assert loaded.failed_block_ids == {5, 6, 99}, "a key that failed once has failed"
    assert (staged.block(5), staged.block(6), staged.block(7)) == content


def test_a_cancelled_job_through_buffers_ends_at_once(staged: Worker, daemon: Daemon) -> None:
    """B7."""
    daemon.hang()
    try:
        job = staged.handle.load_blocks(batch(list(range(1, 16)), list(range(1, 16))))
        assert job is not None
        assert staged.handle.poll(job) is None
        assert staged.handle.cancel(job).status == TransferJobStatus.CANCELLED
        assert len(job.failed_keys) == 15
    finally:
        daemon.hang(False)


def test_ranges_of_a_device_are_failed_blocks(staged: Worker) -> None:
    assert staged.handle.load([staged.plan(1, 4)]).failed_block_ids == {4}
    assert staged.handle.store([staged.plan(1, 4)]).failed_keys == {key(1)}
