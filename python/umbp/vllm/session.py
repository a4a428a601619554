"""A client for an engine's scheduler or worker, with what both connectors agree on. Imports no engine."""

import logging
import weakref
from collections.abc import Mapping
from dataclasses import dataclass

from umbp import HOLD_MS, TIMEOUT_MS, Client

logger = logging.getLogger("vllm.umbp")

FIRST_ATTACH_MS = 1000
"""The longest wait at start for a daemon that is there."""


@dataclass(frozen=True)
class SessionOptions:
    """How an engine talks to the daemon."""

    socket: str
    hold_ms: int = HOLD_MS
    timeout_ms: int = TIMEOUT_MS
    """The longest that this side waits in a step."""
    num_copy_threads: int | None = None


class Session:
    """A client, and one word for each time that its daemon is away or there.

    An engine has many sessions and warns once: its scheduler's does; a worker's says it as information.
    """

    def __init__(self, role: str, descriptor: Mapping[str, str], namespace: str, options: SessionOptions) -> None:
        self.options = options
        self.client = Client(
            options.socket,
            descriptor,
            namespace,
            name=f"vllm {role}",
            copy_threads=options.num_copy_threads,
            timeout_ms=options.timeout_ms,
        )
        self._away = logging.WARNING if role == "scheduler" else logging.INFO
        self._attached: bool | None = None
        self.client.wait_attached(min(FIRST_ATTACH_MS, options.timeout_ms))
        self.look()
        # Also when the interpreter ends, before the engine's memory goes.
        self._close = weakref.finalize(self, self.client.close)

    def look(self) -> None:
        """Says where the daemon is, or that it is away; each once, until it changes."""
        attached = self.client.attached
        if attached == self._attached:
            return
        self._attached = attached
        if attached:
            logger.info("attached to umbpd on %s", self.options.socket)
        else:
            logger.log(
                self._away,
                "no umbpd on %s: nothing is loaded or stored until one is there (start `umbpd`)",
                self.options.socket,
            )

    def close(self) -> None:
        """When it returns, no thread touches registered memory."""
        self._close()


def reference_descriptor(namespace: str, tp: int = 1, pcp: int = 1, dcp: int = 1, pp: int = 1) -> dict[str, str]:
    """What must match for the bytes of UMBPStoreConnector's blocks to mean the same."""
    sizes = {"tp": tp, "pcp": pcp, "dcp": dcp, "pp": pp}
    return {"connector": "vllm UMBPStoreConnector", "namespace": namespace} | {k: str(v) for k, v in sizes.items()}
