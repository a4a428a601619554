"""Copies between a device's tensors and the store, in the engine's process, through pinned host memory.

Stands where `Client` stands (see `Transfers`), for tensors whose memory the client's copy threads cannot touch. A job
goes in waves, each through one of a few buffers: gather on the device, one copy per layer to the host, then the
client's store; or the client's load, then one copy per layer to the device, scatter. Device copies are waited for
where they are asked (a buffer's worth at a time); nothing here has a thread of its own, so waves advance when a job is
waited for.
"""

import contextlib
import logging
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch

from umbp import Client, JobResult, Layout

logger = logging.getLogger("vllm.umbp")

BUFFERS = 2
"""One is copied while the other is stored or loaded."""
BUFFER_BYTES = 64 << 20
"""Of pinned memory each; a block that is larger makes them larger."""
QUEUE_BLOCKS_MAX = 65_536
"""Blocks of open jobs, of loads and of stores each; a job beyond it is refused, or a miss."""
REST_MS = 2
"""How long the oldest wave is waited for before the others are looked at."""


@dataclass
class Result:
    """As `umbp.JobResult`."""

    results: list[str]
    bytes: list[int]
    error: str | None = None


class Transfers(Protocol):
    """What a worker needs of the store: jobs of whole blocks."""

    def load_blocks(
        self, layout: Layout, keys: Sequence[str], block_ids: Sequence[int], groups: Sequence[int]
    ) -> int: ...

    def store_blocks(
        self,
        layout: Layout,
        keys: Sequence[str],
        block_ids: Sequence[int],
        groups: Sequence[int],
        parents: Sequence[str | None],
        depths: Sequence[int],
    ) -> int: ...

    def wait(self, job: int, timeout_ms: int) -> "Result | JobResult | None": ...

    def cancel(self, job: int) -> None: ...


@dataclass(eq=False)
class _Wave:
    """Blocks of one job and group that fit into a buffer together, by their places in the job."""

    job: "_Job"
    group: int
    places: list[int]
    buffer: torch.Tensor | None = None
    running: int = 0
    """The client's job, from when the wave is active."""


@dataclass(eq=False)
class _Job:
    is_load: bool
    keys: Sequence[str]
    block_ids: Sequence[int]
    parents: Sequence[str | None]
    depths: Sequence[int]
    result: Result
    end: float
    """When what is not done has failed, by the monotonic clock."""
    waves: list[_Wave] = field(default_factory=list)
    """Those that have no result."""


class Staging:
    """See the module. `groups` are the layout's; each layer's tensor has one row of bytes for each block."""

    def __init__(
        self, client: Client, layout: Layout, tensors: Mapping[str, torch.Tensor], groups: Sequence[int]
    ) -> None:
        self._client = client
        self._rows = {group: _rows(layout, tensors, group) for group in groups}
        self._block_bytes = {group: sum(row.shape[1] for row in rows) for group, rows in self._rows.items()}
        self._buffer_bytes = max(BUFFER_BYTES, *self._block_bytes.values())
        pinned = any(tensor.is_cuda for tensor in tensors.values())
        self._free = [torch.empty(self._buffer_bytes, dtype=torch.uint8, pin_memory=pinned) for _ in range(BUFFERS)]
        self._buffers = list(self._free)  # kept until the client is closed
        for buffer in self._buffers:
            client.register(buffer.data_ptr(), self._buffer_bytes)
        self._queues: dict[bool, deque[_Wave]] = {True: deque(), False: deque()}  # loads, which an engine waits for
        self._active: list[_Wave] = []
        self._jobs: dict[int, _Job] = {}
        self._last = 0

    def load_blocks(self, layout: Layout, keys: Sequence[str], block_ids: Sequence[int], groups: Sequence[int]) -> int:
        """As the client's."""
        del layout
        return self._begin(True, keys, block_ids, groups, [None] * len(keys), [0] * len(keys))

    def store_blocks(
        self,
        layout: Layout,
        keys: Sequence[str],
        block_ids: Sequence[int],
        groups: Sequence[int],
        parents: Sequence[str | None],
        depths: Sequence[int],
    ) -> int:
        """As the client's: blocks are read until the job ends."""
        del layout
        return self._begin(False, keys, block_ids, groups, parents, depths)

    def wait(self, job: int, timeout_ms: int) -> Result | None:
        """As the client's. What fails, of this job or another, is a result of the blocks that it concerns."""
        end = time.monotonic() + timeout_ms / 1000
        state = self._jobs[job]
        self._advance(0)
        while state.waves:
            left_ms = (end - time.monotonic()) * 1000
            if left_ms <= 0:
                return None
            self._advance(min(REST_MS, round(left_ms)))
        del self._jobs[job]
        return state.result

    def cancel(self, job: int) -> None:
        """What is not done is cancelled, and the job has ended: no block of the engine is touched for it any more.

        The client may still copy to or from a buffer; the buffer is kept until it does not.
        """
        if (state := self._jobs.get(job)) is not None:
            self._stop(state, "cancelled", None)

    def abandon(self, job: int) -> None:
        """As `cancel`, and nobody will ask for the result."""
        self.cancel(job)
        self._jobs.pop(job, None)

    def _begin(
        self,
        is_load: bool,
        keys: Sequence[str],
        block_ids: Sequence[int],
        groups: Sequence[int],
        parents: Sequence[str | None],
        depths: Sequence[int],
    ) -> int:
        # A place of no group or number that there is has no wave, and stays as it is here.
        result = Result(["invalid"] * len(keys), [0] * len(keys))
        end = time.monotonic() + self._client.job_timeout_ms / 1000
        job = _Job(is_load, keys, block_ids, parents, depths, result, end)
        open_blocks = sum(
            len(wave.places) for own in self._jobs.values() for wave in own.waves if own.is_load == is_load
        )
        if open_blocks + len(keys) > QUEUE_BLOCKS_MAX:
            result.results = ["missed" if is_load else "refused"] * len(keys)
            result.error = f"blocks of open jobs are {open_blocks + len(keys)}, limit {QUEUE_BLOCKS_MAX}"
        else:
            for group, rows in self._rows.items():
                blocks = min(row.shape[0] for row in rows)
                places = [p for p, own in enumerate(groups) if own == group and 0 <= block_ids[p] < blocks]
                fit = self._buffer_bytes // self._block_bytes[group]
                job.waves += [_Wave(job, group, places[start : start + fit]) for start in range(0, len(places), fit)]
        self._queues[is_load].extend(job.waves)
        self._last += 1
        self._jobs[self._last] = job
        self._advance(0)
        return self._last

    def _advance(self, rest_ms: int) -> None:
        """Ends what has ended, or whose time is over, and begins what there is a buffer for. Raises nothing."""
        for wave in list(self._active):
            self._look_at(wave, rest_ms)
            rest_ms = 0
        now = time.monotonic()
        for job in self._jobs.values():
            if job.waves and job.end <= now:
                self._stop(job, "late", "the job's time is over")
        while self._free and (queue := self._queues[True] or self._queues[False]):
            wave = queue.popleft()
            wave.buffer = self._free.pop()
            try:
                wave.running = self._submit(wave)
            except Exception as error:  # the device's, of any kind: it concerns this wave
                self._give_back(wave)
                self._settle(wave, _failed(wave, "invalid", error))
            else:
                self._active.append(wave)

    def _look_at(self, wave: _Wave, rest_ms: int) -> None:
        try:
            ended: Result | JobResult | None = self._client.wait(wave.running, rest_ms)
        except Exception as error:  # it is closed, and copies nothing any more
            ended = _failed(wave, "disconnected", error)
        if ended is None:
            return
        if wave in wave.job.waves:
            if wave.job.is_load:
                try:
                    self._scatter(wave, [word == "done" for word in ended.results])
                except Exception as error:  # as above
                    ended = _failed(wave, "invalid", error)
            self._settle(wave, ended)
        self._active.remove(wave)
        self._give_back(wave)

    def _stop(self, job: _Job, word: str, error: str | None) -> None:
        """What is not done ends with this word. Blocks are read before a wave is active, and written after."""
        for wave in list(job.waves):
            if wave in self._active:
                with contextlib.suppress(RuntimeError):  # it is closed
                    self._client.cancel(wave.running)
            else:
                self._queues[job.is_load].remove(wave)
            self._settle(wave, Result([word] * len(wave.places), [0] * len(wave.places), error))

    def _give_back(self, wave: _Wave) -> None:
        assert wave.buffer is not None
        self._free.append(wave.buffer)
        wave.buffer = None

    def _submit(self, wave: _Wave) -> int:
        job = wave.job
        keys = [job.keys[place] for place in wave.places]
        ranges: list[list[tuple[int, int]]] = [[] for _ in keys]
        for part in self._parts(wave):
            start, length = part.data_ptr(), part.shape[1]
            for index, own in enumerate(ranges):
                own.append((start + index * length, length))
        if job.is_load:
            return self._client.load(keys, ranges)
        self._gather(wave)
        parents, depths = [job.parents[place] for place in wave.places], [job.depths[place] for place in wave.places]
        return self._client.store(keys, ranges, parents, depths)

    def _parts(self, wave: _Wave) -> list[torch.Tensor]:
        """Stretches of the wave's buffer: one per layer, with a row for each block."""
        assert wave.buffer is not None
        parts, start = [], 0
        for rows in self._rows[wave.group]:
            length = len(wave.places) * rows.shape[1]
            parts.append(wave.buffer[start : start + length].view(len(wave.places), rows.shape[1]))
            start += length
        return parts

    def _gather(self, wave: _Wave) -> None:
        for rows, part in zip(self._rows[wave.group], self._parts(wave), strict=True):
            ids = torch.tensor([wave.job.block_ids[place] for place in wave.places], device=rows.device)
            # A copy to the host is waited for, and comes after what the device computes now.
            part.copy_(rows.index_select(0, ids))

    def _scatter(self, wave: _Wave, good: list[bool]) -> None:
        chosen = [index for index, is_good in enumerate(good) if is_good]
        ids = [wave.job.block_ids[wave.places[index]] for index in chosen]
        try:
            for rows, part in zip(self._rows[wave.group], self._parts(wave), strict=True):
                source = part[torch.tensor(chosen, dtype=torch.long)].to(rows.device)
                rows.index_copy_(0, torch.tensor(ids, dtype=torch.long, device=rows.device), source)
        finally:
            # Also where one could not begin: those before it are over when the blocks are told to have failed.
            for device in {rows.device for rows in self._rows[wave.group]}:
                if device.type != "cpu":
                    torch.get_device_module(device).synchronize(device)

    @staticmethod
    def _settle(wave: _Wave, ended: "Result | JobResult") -> None:
        result = wave.job.result
        for place, word, size in zip(wave.places, ended.results, ended.bytes, strict=True):
            result.results[place], result.bytes[place] = word, size
        result.error = result.error or ended.error
        wave.job.waves.remove(wave)


def _failed(wave: _Wave, word: str, error: Exception) -> Result:
    logger.warning("%d blocks failed: %s", len(wave.places), error)
    return Result([word] * len(wave.places), [0] * len(wave.places), str(error))


def _rows(layout: Layout, tensors: Mapping[str, torch.Tensor], group: int) -> list[torch.Tensor]:
    """Per layer of a group, in the order of a block's bytes: the tensor's memory as one row of bytes for each block."""
    first, second = layout.runs(0, group), layout.runs(1, group)
    starts: dict[str, tuple[int, int, int]] = {}
    for (layer, address, length, _), (_, next_address, _, _) in zip(first, second, strict=True):
        start, known, step = starts.get(layer, (address, 0, next_address - address))
        starts[layer] = (start, known + length, step)  # a block's runs in one layer lie side by side
    rows = []
    for layer, (address, length, step) in starts.items():
        storage = tensors[layer].untyped_storage()
        offset = address - storage.data_ptr()
        count = (storage.nbytes() - offset - length) // step + 1
        raw = torch.empty(0, dtype=torch.uint8, device=tensors[layer].device).set_(storage)
        rows.append(raw.as_strided((count, length), (step, 1), offset))
    return rows
