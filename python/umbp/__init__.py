"""The block store for Python: a client of `umbpd`, and where the bundled programs are.

Importing it starts no thread, opens nothing and touches no accelerator. The connector for vLLM is `umbp.vllm`.
"""

from umbp._umbp import (
    COPY_THREADS_MAX,
    HOLD_MS,
    TIMEOUT_MS,
    Client,
    Embedded,
    JobResult,
    Layout,
    Scheduler,
    StepPlan,
    Worker,
    __version__,
    default_socket,
    engine_descriptor,
    sum_stats,
    sum_store_events,
)
from umbp.programs import program

__all__ = [
    "COPY_THREADS_MAX",
    "HOLD_MS",
    "TIMEOUT_MS",
    "Client",
    "Embedded",
    "JobResult",
    "Layout",
    "Scheduler",
    "StepPlan",
    "Worker",
    "__version__",
    "default_socket",
    "engine_descriptor",
    "program",
    "sum_stats",
    "sum_store_events",
]
