"""Copies between a device's tensors and the store, in the engine's process, through pinned host memory.

Stands where `Client` stands (see `Transfers`), for tensors whose memory the client's copy threads cannot touch. A job
goes in waves, each through one of a few buffers: gather on the device, one copy per layer to the host, then the
client's store; or the client's load, then one copy per layer to the device, scatter. Device copies are waited for
where they are asked (a buffer's worth at a time); nothing here has a thread of its own, so waves advance when a job is
waited for.
"""

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


@dataclass
class _Wave:
    """Blocks of one job and group that fit into a buffer together, by their places in the job."""

    job: "_Job"
    group: int
    places: list[int]
    buffer: torch.Tensor | None = None
    running: int | None = None
    """The client's job."""


@dataclass(eq=False)
class _Job:
    is_load: bool
    keys: Sequence[str]
    block_ids: Sequence[int]
    parents: Sequence[str | None]
    depths: Sequence[int]
    result: Result
    waves: list[_Wave] = field(default_factory=list)


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
        self._queue: deque[_Wave] = deque()
        self._active: list[_Wave] = []
        self._jobs: dict[int, _Job] = {}
        self._last = 0

    def load_blocks(self, layout: Layout, keys: Sequence[str], block_ids: Sequence[int], groups: Sequence[int]) -> int:
        """As the client's."""
        del layout
        result = Result(["invalid"] * len(keys), [0] * len(keys))
        return self._begin(_Job(True, keys, block_ids, [None] * len(keys), [0] * len(keys), result), groups)

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
        result = Result(["invalid"] * len(keys), [0] * len(keys))
        return self._begin(_Job(False, keys, block_ids, parents, depths, result), groups)

    def wait(self, job: int, timeout_ms: int) -> Result | None:
        """As the client's."""
        end = time.monotonic() + timeout_ms / 1000
        state = self._jobs[job]
        self._advance(0)
        while state.waves:
            if time.monotonic() >= end:
                return None
            self._advance(REST_MS)
        del self._jobs[job]
        return state.result

    def cancel(self, job: int) -> None:
        """As the client's: what is not done is cancelled, and the job ends as soon as its copies have."""
        state = self._jobs[job]
        for wave in list(state.waves):
            if wave.running is not None:
                self._client.cancel(wave.running)
                continue
            self._queue.remove(wave)
            self._settle(wave, Result(["cancelled"] * len(wave.places), [0] * len(wave.places)))

    def _begin(self, job: _Job, groups: Sequence[int]) -> int:
        for group, rows in self._rows.items():
            blocks = min(row.shape[0] for row in rows)
            places = [p for p, own in enumerate(groups) if own == group and 0 <= job.block_ids[p] < blocks]
            fit = self._buffer_bytes // self._block_bytes[group]
            job.waves += [_Wave(job, group, places[start : start + fit]) for start in range(0, len(places), fit)]
        self._queue.extend(job.waves)
        self._last += 1
        self._jobs[self._last] = job
        self._advance(0)
        return self._last

    def _advance(self, rest_ms: int) -> None:
        """Ends what has ended and begins what there is a buffer for."""
        for wave in list(self._active):
            ended = self._end(wave, rest_ms)
            rest_ms = 0
            if ended is not None:
                self._active.remove(wave)
                self._give_back(wave, ended)
        while self._queue and self._free:
            wave = self._queue.popleft()
            wave.buffer = self._free.pop()
            try:
                self._submit(wave)
            except Exception as error:
                self._give_back(wave, _failed(wave, error))
                continue
            self._active.append(wave)

    def _end(self, wave: _Wave, rest_ms: int) -> "Result | JobResult | None":
        """Whatever a device refuses (memory, say) fails this wave, and no other: one that stayed behind would be copied
        later, into blocks that are another's by then."""
        assert wave.running is not None
        try:
            ended = self._client.wait(wave.running, rest_ms)
            if ended is not None and wave.job.is_load:
                self._scatter(wave, [word == "done" for word in ended.results])
        except Exception as error:
            # The client's job has ended, or its client is closed: nobody touches the buffer.
            return _failed(wave, error)
        return ended

    def _give_back(self, wave: _Wave, ended: "Result | JobResult") -> None:
        assert wave.buffer is not None
        self._free.append(wave.buffer)
        self._settle(wave, ended)

    def _submit(self, wave: _Wave) -> None:
        job = wave.job
        keys = [job.keys[place] for place in wave.places]
        ranges: list[list[tuple[int, int]]] = [[] for _ in keys]
        for part in self._parts(wave):
            start, length = part.data_ptr(), part.shape[1]
            for index, own in enumerate(ranges):
                own.append((start + index * length, length))
        if job.is_load:
            wave.running = self._client.load(keys, ranges)
            return
        self._gather(wave)
        parents, depths = [job.parents[place] for place in wave.places], [job.depths[place] for place in wave.places]
        wave.running = self._client.store(keys, ranges, parents, depths)

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
        devices = {rows.device for rows in self._rows[wave.group]}
        for rows, part in zip(self._rows[wave.group], self._parts(wave), strict=True):
            source = part[torch.tensor(chosen, dtype=torch.long)].to(rows.device)
            rows.index_copy_(0, torch.tensor(ids, dtype=torch.long, device=rows.device), source)
        for device in devices:
            if device.type != "cpu":
                torch.get_device_module(device).synchronize(device)

    @staticmethod
    def _settle(wave: _Wave, ended: "Result | JobResult") -> None:
        result = wave.job.result
        for place, word, size in zip(wave.places, ended.results, ended.bytes, strict=True):
            result.results[place], result.bytes[place] = word, size
        result.error = result.error or ended.error
        wave.job.waves.remove(wave)


def _failed(wave: _Wave, error: Exception) -> Result:
    logger.warning("a copy between the device and the host has failed, %d blocks: %s", len(wave.places), error)
    return Result(["invalid"] * len(wave.places), [0] * len(wave.places), str(error))


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
