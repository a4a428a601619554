"""The package as it is installed."""

import subprocess
import sys
from pathlib import Path

import pytest

import umbp


def run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def test_importing_starts_no_thread_and_no_engine_and_touches_no_accelerator() -> None:
    """F11."""
    code = """
import os, sys
import umbp, umbp.vllm, umbp.vllm.session, umbp.vllm.options, umbp.vllm.versions
threads = len(os.listdir("/proc/self/task"))
print(threads, [name for name in ("torch", "vllm", "numpy") if name in sys.modules])
"""
    assert run(code) == "1 []"


def test_importing_the_connectors_beside_an_engine_starts_no_thread_and_touches_no_accelerator() -> None:
    """F11."""
    code = """
import os
import torch, vllm

def refuse():
    raise RuntimeError("the accelerator was initialised")

torch.cuda._lazy_init = refuse
# What the connectors' own imports of the engine start is the engine's.
import vllm.config, vllm.v1.kv_cache_interface, vllm.v1.core.kv_cache_utils
import vllm.distributed.kv_transfer.kv_connector.v1.base
import vllm.distributed.kv_transfer.kv_connector.v1.metrics
import vllm.distributed.kv_transfer.kv_connector.v1.umbp
try:
    torch.zeros(1).cuda()
except RuntimeError as error:
    print(error)
before = len(os.listdir("/proc/self/task"))
import umbp.vllm.connector, umbp.vllm.runtime
print(len(os.listdir("/proc/self/task")) - before)
"""
    assert run(code).splitlines()[-2:] == ["the accelerator was initialised", "0"]


@pytest.mark.parametrize("name", ["umbpd", "umbp"])
def test_programs_are_on_the_path_and_have_the_package_version(name: str) -> None:
    command = Path(sys.executable).parent / name
    output = subprocess.run([command, "--version"], capture_output=True, text=True, check=True).stdout
    assert output.split() == [name, umbp.__version__]


def test_the_package_says_that_it_is_typed() -> None:
    folder = Path(umbp.__file__).parent
    assert (folder / "py.typed").is_file()
    assert (folder / "_umbp.pyi").is_file()


def test_a_package_without_programs_says_how_to_get_them() -> None:
    with pytest.raises(FileNotFoundError, match="cargo xtask wheel"):
        umbp.program("umbpctl")
