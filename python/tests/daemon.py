"""A real umbpd, from the installed package, on a socket and state folder of its own."""

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

from umbp import Client, program

PR_SET_PDEATHSIG = 1
START_S = 30.0
STOP_S = 15.0


def die_with_parent() -> None:
    """In a child, before its program begins: a test's run that is killed leaves no process behind."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class Daemon:
    """Not running until `start`."""

    def __init__(self, folder: Path, capacity: str = "256MiB") -> None:
        self.socket = folder / "umbpd.sock"
        self._config = folder / "umbpd.toml"
        self._config.write_text(
            f'[daemon]\nsocket = "{self.socket}"\nadmin = "off"\n'
            f'[[tier]]\nname = "dram"\nbackend = "dram"\ncapacity = "{capacity}"\n'
        )
        self.engines = 0
        """Engines that are to be attached."""
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None, "the daemon does not run"
        return self._process.pid

    def start(self) -> None:
        """Returns when it listens."""
        assert self._process is None, "the daemon runs already"
        self._process = subprocess.Popen(
            [program("umbpd"), "--config", self._config],
            preexec_fn=die_with_parent,
        )
        with contextlib.closing(Client(self.socket, {}, "probe", name="test")) as probe:
            attached = probe.wait_attached(round(START_S * 1000))
        assert attached, f"umbpd does not serve on {self.socket}; its end: {self._process.poll()}"

    def kill(self) -> None:
        """Without warning, as a crash."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """If it runs."""
        if self._process is not None:
            self.hang(False)
            self._end(signal.SIGTERM)

    def hang(self, hung: bool = True) -> None:
        """It answers nothing any more, and its socket stays; or goes on."""
        os.kill(self.pid, signal.SIGSTOP if hung else signal.SIGCONT)

    def status(self) -> dict[str, Any]:
        """What `umbp status` says."""
        command = [str(program("umbp")), "--socket", str(self.socket), "status", "--json"]
        output = subprocess.run(command, capture_output=True, check=True, timeout=30)
        status: dict[str, Any] = json.loads(output.stdout)
        return status

    def await_engines(self) -> None:
        """Waits until scheduler and worker of all engines are attached."""
        deadline = time.monotonic() + START_S
        names: list[str] = []
        while time.monotonic() < deadline:
            names = [session["client"] for session in self.status()["sessions"] if session["open"]]
            if all(names.count(f"vllm {role}") >= self.engines for role in ("scheduler", "worker")):
                return
            time.sleep(0.05)
        raise TimeoutError(f"attached are {sorted(names)}, expected {self.engines} schedulers and workers")

    def _end(self, how: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(how)
        try:
            self._process.wait(STOP_S)
        finally:
            self._process.kill()
            self._process = None
