"""A client for an engine's scheduler or worker, with what both connectors agree on. Imports no engine."""

import logging
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from umbp import Client, default_socket

logger = logging.getLogger("vllm.umbp")

HOLD_MS = 2000
"""How long a lookup's hits are kept from eviction, until the worker's load."""
TIMEOUT_MS = 5000
"""The longest wait for the daemon, in any call."""
FIRST_ATTACH_MS = 1000
"""The longest wait at start for a daemon that is there."""


@dataclass(frozen=True)
class SessionOptions:
    """How an engine talks to the daemon."""

    socket: str
    hold_ms: int = HOLD_MS
    timeout_ms: int = TIMEOUT_MS
    num_copy_threads: int | None = None

    @classmethod
    def read(cls, options: Mapping[str, Any]) -> "SessionOptions":
        """From `kv_connector_extra_config`; what it does not name has its default."""
        threads = options.get("num_copy_threads")
        return cls(
            socket=str(options.get("socket") or default_socket()),
            hold_ms=int(options.get("hold_ms", HOLD_MS)),
            timeout_ms=int(options.get("timeout_ms", TIMEOUT_MS)),
            num_copy_threads=None if threads is None else int(threads),
        )


class Session:
    """A client, and one warning for each time that its daemon is away."""

    def __init__(self, role: str, descriptor: Mapping[str, str], namespace: str, options: SessionOptions) -> None:
        self.options = options
        self.client = Client(
            options.socket,
            descriptor,
            namespace,
            name=f"vllm {role}",
            copy_threads=options.num_copy_threads,
            timeout_ms=options.timeout_ms,
            job_timeout_ms=options.timeout_ms,
        )
        self._warned = False
        self.client.wait_attached(min(FIRST_ATTACH_MS, options.timeout_ms))
        self.look()
        # Also when the interpreter ends, before the engine's memory goes.
        self._close = weakref.finalize(self, self.client.close)

    def look(self) -> None:
        """Says once that the daemon is away, and once that it is back."""
        attached = self.client.attached
        if not attached and not self._warned:
            logger.warning(
                "no umbpd on %s: nothing is loaded or stored until one is there (start `umbpd`)", self.options.socket
            )
        elif attached and self._warned:
            logger.info("umbpd on %s is there: attached", self.options.socket)
        self._warned = not attached

    def close(self) -> None:
        """When it returns, no thread touches registered memory."""
        self._close()


def reference_descriptor(namespace: str, tp: int = 1, pcp: int = 1, dcp: int = 1, pp: int = 1) -> dict[str, str]:
    """What must match for the bytes of UMBPStoreConnector's blocks to mean the same."""
    sizes = {"tp": tp, "pcp": pcp, "dcp": dcp, "pp": pp}
    return {"connector": "vllm UMBPStoreConnector", "namespace": namespace} | {k: str(v) for k, v in sizes.items()}
