"""What `kv_connector_extra_config` may say. Imports no engine."""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, get_args, get_type_hints

from umbp import COPY_THREADS_MAX, HOLD_MS, TIMEOUT_MS, default_socket
from umbp.vllm.session import SessionOptions

RUNTIME_OPTIONS = ("socket", "hold_ms", "timeout_ms", "num_copy_threads")
POLICY_OPTION = "allow_load_failure_policy"
MODES = ("standalone", "embedded")


class OptionError(ValueError):
    """An option is unknown, of the wrong type, or out of range; the text names it, its value and the remedy."""


@dataclass(frozen=True)
class ConnectorOptions:
    """Checked options, with their defaults."""

    socket: str | None = None
    """The daemon's socket; none = where umbpd listens by default."""
    mode: str = "standalone"
    """"standalone": umbpd runs beside the engine. "embedded": the engine's first process is the daemon."""
    config: str | None = None
    """In mode "embedded": the deployment's TOML file; none = the default deployment."""
    key_namespace: str | None = None
    """A name beside the model's: engines share blocks only under the same one."""
    load_async: bool = True
    """Requests wait for their blocks outside the engine's steps."""
    lookup_async: bool = False
    """Requests wait for their lookups outside the scheduler's steps."""
    num_copy_threads: int | None = None
    """Threads that copy, 1 to 64; none = as many as cores, at most 4."""
    timeout_ms: int = TIMEOUT_MS
    """The longest wait for the daemon in an engine step; scheduler and workers have a half each."""
    save_decode_cache: bool = False
    """Blocks of generated tokens are stored too."""
    hold_ms: int = HOLD_MS
    """How long hits are kept from eviction between lookup and load."""
    allow_load_failure_policy: bool = False
    """Start also under another kv_load_failure_policy than "recompute": a failed load then fails its request."""

    @classmethod
    def read(cls, given: Mapping[str, Any]) -> "ConnectorOptions":
        """Refuses what it does not know."""
        known = [field.name for field in fields(cls)]
        hints = get_type_hints(cls)
        for name, value in given.items():
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1)
                hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(known)}"
                raise OptionError(f"kv_connector_extra_config has no option {name!r}: {hint}")
            _check_type(name, value, hints[name])
        options = cls(**given)
        options._check()
        return options

    def _check(self) -> None:
        if self.mode not in MODES:
            raise OptionError(f"mode is {self.mode!r}: choose one of {', '.join(MODES)}")
        if self.config is not None and self.mode != "embedded":
            raise OptionError(
                f"config is {self.config!r} in mode {self.mode!r}: give it to umbpd, or choose 'embedded'"
            )
        if self.config is not None and not Path(self.config).is_file():
            raise OptionError(f"config is {self.config!r}: no such file")
        if self.num_copy_threads is not None and not 1 <= self.num_copy_threads <= COPY_THREADS_MAX:
            raise OptionError(f"num_copy_threads is {self.num_copy_threads}: choose 1 to {COPY_THREADS_MAX}")
        for name, value, least in (("timeout_ms", self.timeout_ms, 1), ("hold_ms", self.hold_ms, 0)):
            if not least <= value <= 3_600_000:
                raise OptionError(f"{name} is {value}: choose {least} to 3600000 milliseconds")
        for name, text in (("socket", self.socket), ("key_namespace", self.key_namespace)):
            if text == "":
                raise OptionError(f"{name} is empty: give a value, or leave it out")
        if self.socket is not None and not Path(self.socket).is_absolute():
            raise OptionError(f"socket is {self.socket!r}: give an absolute path; '~' and variables are not expanded")

    def session(self, socket: str | None = None) -> SessionOptions:
        """Of the daemon at this socket; none = the option's."""
        # A step may wait for the scheduler's side and then for a worker's.
        side_ms = max(1, self.timeout_ms // 2)
        socket = socket or self.socket or str(default_socket())
        return SessionOptions(socket, self.hold_ms, side_ms, self.num_copy_threads)


def reference_session(given: Mapping[str, Any]) -> SessionOptions:
    """Of UMBPStoreConnector's options those that are the runtime's, checked as UmbpConnector's own. What else there is,
    is the connector's."""
    return ConnectorOptions.read({name: given[name] for name in RUNTIME_OPTIONS if name in given}).session()


def reference_allows_policy(given: Mapping[str, Any]) -> bool:
    """Of UMBPStoreConnector's options the one that lets an engine start under another policy."""
    own = {name: given[name] for name in (POLICY_OPTION,) if name in given}
    return ConnectorOptions.read(own).allow_load_failure_policy


def check_policy(policy: str | None, allowed: bool) -> None:
    """A load may always fail: what is evicted between lookup and load is computed anew, if the engine lets us."""
    if policy != "recompute" and not allowed:
        raise OptionError(
            f"kv_load_failure_policy is {policy!r}: a failed load would fail its request. "
            'Set kv_load_failure_policy="recompute" in the KVTransferConfig, or the option '
            '"allow_load_failure_policy": true to start all the same'
        )


def _check_type(name: str, value: object, hint: Any) -> None:
    wanted = get_args(hint) or (hint,)
    # A bool is an int in Python, and a mistake here.
    if type(value) not in wanted:
        words = " or ".join(
            {"str": "a text", "int": "a whole number", "bool": "true or false"}.get(t.__name__, "null") for t in wanted
        )
        raise OptionError(f"{name} is {value!r}: expected {words}")
