"""The extension module. Keys are text: `umbp:vllm:v1:<key_namespace>:tp0:pcp0:dcp0:pp0:g0:<hash hex>`."""

from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Protocol

__version__: str
TIMEOUT_MS: int
"""The longest wait for the daemon, in any call, unless told otherwise."""
HOLD_MS: int
"""How long a lookup's hits are kept from eviction, until the worker's load, unless told otherwise."""
COPY_THREADS_MAX: int

def default_socket() -> Path:
    """Where umbpd listens, and its clients look, if they are told nothing."""

def sum_store_events(
    one: dict[int, tuple[int, set[tuple[int, bytes]]]], other: dict[int, tuple[int, set[tuple[int, bytes]]]]
) -> dict[int, tuple[int, set[tuple[int, bytes]]]]:
    """Two reports of one step together: per event its workers, and what failed on any of them."""

def sum_stats(one: dict[str, dict[str, int]], other: dict[str, dict[str, int]]) -> dict[str, dict[str, int]]:
    """Counts per operation, of two workers or intervals together; what is no count of ours is left out."""

def engine_descriptor(
    *,
    key_namespace: str | None,
    model: str,
    revision: str | None,
    block_hash: str,
    kv_layout: str | None,
    kv_dtype: str,
    block_size: int,
    sizes: tuple[int, int, int, int],
    groups: Sequence[tuple[str, int, Sequence[tuple[str, Mapping[str, str]]]]],
    drafter: tuple[str, str | None, str | None] | None,
    extra: Mapping[str, str],
) -> dict[str, str]:
    """What must match for an engine's bytes to mean the same.

    `sizes`: tp, pcp, dcp, pp. `groups`: (kind, block size, layers), each layer with every field that shapes its bytes.
    `drafter`: method, model, revision.
    """

class JobResult:
    """How a job ended, one entry per key in the order of the job.

    `results` holds "done", "present", "refused", "missed", "corrupt", "late", "cancelled", "disconnected" or
    "invalid". Of a load, memory of a key that is not "done" holds anything.
    """

    @property
    def results(self) -> list[str]: ...
    @property
    def bytes(self) -> list[int]: ...
    @property
    def error(self) -> str | None: ...

class Layout:
    """Where blocks lie in engine memory; immutable.

    `layers`: (name, group, block stride, block bytes, object offset) as configured, in bytes. `tensors`: name to
    (address of block 0, real block stride). A registration that cannot be is refused with ValueError.
    """

    def __init__(
        self, layers: Sequence[tuple[str, int, int, int, int]], tensors: Mapping[str, tuple[int, int]]
    ) -> None: ...
    def block_bytes(self, group: int) -> int | None: ...
    def runs(self, block_id: int, group: int) -> list[tuple[str, int, int, int]]: ...

class Client:
    """One session with umbpd at a time, attached anew by itself. Any thread may call it.

    A failure is a miss, or the result of exactly the keys that it concerns. ValueError is for wrong arguments,
    RuntimeError for a closed client. Nothing here waits longer than the time-outs given.
    """

    def __init__(
        self,
        socket: str | PathLike[str],
        namespace: Mapping[str, str],
        key_namespace: str,
        *,
        name: str | None = None,
        tenant: str | None = None,
        copy_threads: int | None = None,
        timeout_ms: int | None = None,
        job_timeout_ms: int | None = None,
    ) -> None:
        """Starts, without waiting for a daemon. A job takes at most `job_timeout_ms`; none = 30 s, or `timeout_ms`
        where that is longer."""

    @property
    def job_timeout_ms(self) -> int: ...
    @property
    def attached(self) -> bool: ...
    def wait_attached(self, timeout_ms: int) -> bool: ...
    def register(self, address: int, length: int) -> None:
        """The memory stays mapped until `unregister` answers true or `close` returns. While a job is open nobody
        else writes memory that it names, and of a load nobody reads it."""

    def unregister(self, address: int, timeout_ms: int) -> bool: ...
    def lookup(self, keys: Sequence[str], hold_ms: int = 0) -> list[bool]: ...
    def load(self, keys: Sequence[str], ranges: Sequence[Sequence[tuple[int, int]]]) -> int: ...
    def load_blocks(
        self, layout: Layout, keys: Sequence[str], block_ids: Sequence[int], groups: Sequence[int]
    ) -> int: ...
    def store(
        self,
        keys: Sequence[str],
        ranges: Sequence[Sequence[tuple[int, int]]],
        parents: Sequence[str | None],
        depths: Sequence[int],
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
    def poll(self, job: int) -> JobResult | None: ...
    def wait(self, job: int, timeout_ms: int) -> JobResult | None: ...
    def cancel(self, job: int) -> None: ...
    def unhold(self, keys: Sequence[str] = ()) -> int: ...
    def clear(self) -> tuple[int, int]:
        """(blocks forgotten, blocks left since they are in use). RuntimeError without a daemon."""

    def status(self) -> str:
        """The daemon's state, as JSON. RuntimeError without a daemon."""

    def counters(self) -> dict[str, int]: ...
    def take_removed(self) -> tuple[list[str], bool]:
        """Keys that left a tier since the last call (another tier may have them); true = others may have gone too."""

    def publish(self, keys: Sequence[str]) -> None:
        """These keys' blocks are there now: when they are gone, `take_evicted` tells."""

    def take_evicted(self) -> list[str]:
        """Published keys that no tier has any more, as far as is known: never waits. It takes what `take_removed`
        takes; use one of them."""

    def close(self) -> None:
        """When it returns, no thread touches registered memory any more, whoever else is in a call of this client."""

class StepPlan:
    """Loads and stores of one engine step. Immutable; it can be pickled, for processes of the same version.

    A load's block is (group, hash, block id); a store's has (parent's hash, depth) besides. Per request, the head of
    the chain first.
    """

    def __init__(
        self,
        *,
        async_load: bool = False,
        store_event: int | None = None,
        loads: Sequence[tuple[str, Sequence[tuple[int, bytes, int]]]] = (),
        stores: Sequence[tuple[str, Sequence[tuple[int, bytes, int, bytes | None, int]]]] = (),
        preempted: Sequence[str] = (),
    ) -> None: ...
    @property
    def loads(self) -> list[tuple[str, int]]:
        """Requests that load, with the number of their blocks."""

    @property
    def stores(self) -> list[tuple[str, int]]: ...
    def to_bytes(self) -> bytes: ...
    @staticmethod
    def from_bytes(bytes: bytes) -> StepPlan: ...

class Place(Protocol):
    """A worker's place: parallel sizes (tp, pcp, dcp, pp), its index, tp ranks in a row that hold equal bytes."""

    @property
    def sizes(self) -> tuple[int, int, int, int]: ...
    @property
    def index(self) -> int: ...
    @property
    def replicas(self) -> int: ...

class Worker:
    """The worker's side of the connector: turns steps into jobs and settles them. Each report is taken once.

    `handle_preemptions`, `close` and, with synchronous loads, `start_load` and `wait_for_layer_load` may wait, at most
    `timeout_ms` in a step, besides what the scheduler's side may wait in it; nothing fails for want of a daemon. The
    memory of `ranges` stays mapped until `close` returns.
    """

    def __init__(
        self,
        socket: str | PathLike[str],
        descriptor: Mapping[str, str],
        *,
        layout: Layout,
        blocks: int,
        ranges: Sequence[tuple[int, int]],
        place: Place,
        report_failed_requests: bool,
        events: bool,
        timeout_ms: int,
        copy_threads: int | None = None,
    ) -> None: ...
    @staticmethod
    def staged(
        staging: object,
        client: Client,
        namespace: str,
        *,
        place: Place,
        report_failed_requests: bool,
        events: bool,
        timeout_ms: int,
    ) -> Worker:
        """Over `umbp.vllm.staging.Staging`, whose client's keys are of `namespace`."""

    def handle_preemptions(self, step: StepPlan) -> None: ...
    def start_load(self, step: StepPlan) -> None: ...
    def wait_for_layer_load(self) -> None: ...
    def store(self, step: StepPlan) -> None: ...
    def take_finished(self) -> list[str]:
        """Requests whose asynchronous loads have ended."""

    def take_failed_requests(self) -> list[str]: ...
    def take_load_errors(self) -> list[int]:
        """Blocks whose load failed."""

    def take_store_events(self) -> list[tuple[int, int, list[tuple[int, bytes]]]]:
        """Store events that have ended: (event, workers, failed objects as (group, hash))."""

    def take_stats(self) -> dict[str, dict[str, int]]: ...
    def take_removed(self) -> list[tuple[int, bytes]]:
        """Blocks, as (group, hash), that this worker stored and no tier has any more."""

    def notice(self) -> tuple[int, str] | None:
        """News for people, with its level as `logging` counts: where the daemon is, that it is away, or is back."""

    def counters(self) -> dict[str, int]: ...
    def close(self) -> None:
        """When it returns, no thread touches the engine's memory."""

class Scheduler:
    """The scheduler's side of the connector: plans what a step's workers load and store.

    It looks nothing up and stores nothing until it is bound. `matched` and `reset` may wait for the daemon, at most
    `timeout_ms`, besides what the worker's side may wait in the same step; nothing fails for want of one. `groups`:
    (kind, block size, window, mode, is the drafter's), kinds as in `umbp.vllm.groups`. A table is a list of block ids
    per group; a block is (group, hash).
    """

    def __init__(
        self,
        groups: Sequence[tuple[str, int, int | None, str | None, bool]],
        place: Place,
        *,
        num_workers: int,
        prefix_match_unit: int | None,
        retention_interval: int | None,
        load_async: bool,
        lookup_async: bool,
        save_decode_cache: bool,
        stores: bool,
        events: bool,
        eagle: bool,
        unreported_steps: int,
    ) -> None: ...
    @property
    def load_async(self) -> bool:
        """What is in force: with several groups loads are always asynchronous."""

    def bind(
        self, socket: str | PathLike[str], descriptor: Mapping[str, str], *, hold_ms: int, timeout_ms: int
    ) -> None: ...
    def tell(
        self,
        id: str,
        is_new: bool,
        prompt_tokens: int,
        new_tokens: int,
        tokens: Sequence[int],
        hashes: Sequence[bytes],
    ) -> None:
        """A request is new, or has more tokens and hashes than were told; the tokens themselves matter for events."""

    def matched(
        self, id: str, local_tokens: int, local_cached: Callable[[int, bytes], bool]
    ) -> tuple[int | None, bool]: ...
    def allocated(self, id: str, table: Sequence[Sequence[int]], external_tokens: int) -> None:
        """RuntimeError: other tokens than those that were matched."""

    def step(
        self,
        new: Sequence[tuple[str, int, int, Sequence[Sequence[int]]]],
        cached: Sequence[tuple[str, int, int, Sequence[Sequence[int]] | None, bool]],
        finished: Sequence[str],
        preempted: Sequence[str],
        tables: Sequence[tuple[str, Sequence[Sequence[int]]]],
        offloads: Sequence[tuple[str, Sequence[tuple[int, int, int]]]],
    ) -> StepPlan:
        """`new` and `cached`: id, tokens before the step, tokens of the step, table (cached: to append, or the whole
        one of a resumed request, and whether it is that). `offloads`: (group, block id, tokens) per request."""

    def finished(self, id: str) -> None: ...
    def partial_tail(
        self,
        id: str,
        table: Sequence[Sequence[int]],
        offloads: Sequence[tuple[int, int, int]],
        computed_tokens: int,
        in_flight_tokens: int,
    ) -> None: ...
    def update(self, events: Sequence[tuple[int, int, Sequence[tuple[int, bytes]]]], now: float) -> None:
        """Workers ended store events: (event, workers, what failed)."""

    def loads_failed(self, requests: Sequence[str], blocks: Sequence[int]) -> None:
        """Loads of these requests, or into these blocks, have failed: nothing is offered to them until they are
        preempted."""

    def forget_published(self, removed: Sequence[tuple[int, bytes]]) -> None: ...
    def take_events(
        self, now: float
    ) -> tuple[list[tuple[int, bytes, bytes | None, list[int], int]], list[tuple[int, bytes]]]:
        """Blocks that are there now (group, hash, parent, tokens, block size), and blocks that are there no more."""

    def take_pins(self) -> list[tuple[bool, list[int]]]:
        """Pins to take (true) or give back, in order."""

    def pending(self) -> bool: ...
    def reset(self) -> bool: ...
    def notice(self) -> tuple[int, str] | None: ...
    def close(self) -> None: ...

class Embedded:
    """This process's part in an engine's own daemon: the first process of a socket serves, the others attach to it.

    `config` is a deployment's file (none = the default one), `socket` wins over it, `program` is the umbpd whose
    `../plugins` holds the backends. Returns when the daemon is up. ValueError: the deployment is wrong; RuntimeError:
    the daemon does not come up.
    """

    def __init__(
        self,
        config: str | PathLike[str] | None,
        socket: str | PathLike[str] | None,
        program: str | PathLike[str],
    ) -> None: ...
    @property
    def socket(self) -> Path: ...
    @property
    def about(self) -> str: ...
    @property
    def serves(self) -> bool: ...
    def stop(self) -> None:
        """Drains and stops what this process serves; nothing where it does not."""
