"""A daemon inside this process."""

import subprocess
import sys
from pathlib import Path

import pytest
from test_client import DESCRIPTOR, NAMESPACE, Memory, key, load, store

from umbp import Client, Embedded, program

TIER = '[[tier]]\nname = "dram"\nbackend = "dram"\ncapacity = "64MiB"\n'


@pytest.fixture
def config(tmp_path: Path) -> Path:
    file = tmp_path / "umbpd.toml"
    file.write_text(f'[daemon]\nsocket = "{tmp_path}/own.sock"\nadmin = "off"\n{TIER}')
    return file


def test_the_first_process_serves_and_the_next_attaches(config: Path) -> None:
    first = Embedded(config, None, program("umbpd"))
    assert first.serves
    assert "dram (running" in first.about
    code = (
        "import sys, umbp\n"
        "member = umbp.Embedded(sys.argv[1], None, umbp.program('umbpd'))\n"
        "client = umbp.Client(member.socket, {}, 'x')\n"
        "print(member.serves, client.wait_attached(10_000))\n"
    )
    second = subprocess.run([sys.executable, "-c", code, config], capture_output=True, text=True, check=True)
    assert second.stdout.split() == ["False", "True"]
    client = Client(first.socket, DESCRIPTOR, NAMESPACE)
    assert client.wait_attached(10_000)
    memory = Memory(8192)
    client.register(memory.address, 8192)
    content = memory.fill(0, 4096)
    assert store(client, [key(1)], [[(memory.address, 4096)]]) == ["done"]
    assert load(client, [key(1)], [[(memory.address + 4096, 4096)]]) == ["done"]
    assert memory.read(4096, 4096) == content
    first.stop()
    first.stop()
    assert load(client, [key(1)], [[(memory.address, 4096)]]) == ["disconnected"]
    client.close()
    again = Embedded(config, None, program("umbpd"))
    assert again.serves
    again.stop()


def test_what_the_daemon_warns_of_is_on_standard_error(config: Path, tmp_path: Path) -> None:
    config.write_text(
        f'[daemon]\nsocket = "{tmp_path}/own.sock"\nadmin = "off"\n{TIER}'
        '[[tier]]\nname = "disk"\nbackend = "nvme"\ncapacity = "64MiB"\nrequired = false\n'
        '[tier.options]\npaths = ["/proc/nowhere"]\n'
    )
    code = "import sys, umbp; umbp.Embedded(sys.argv[1], None, umbp.program('umbpd')).stop()"
    ran = subprocess.run([sys.executable, "-c", code, config], capture_output=True, text=True, check=True)
    lines = [line for line in ran.stderr.splitlines() if "tier disk does not serve" in line]
    assert len(lines) == 1, ran.stderr
    assert "WARN" in lines[0]


def test_a_wrong_deployment_is_refused_with_its_place_and_remedy(config: Path) -> None:
    config.write_text(TIER.replace("capacity", "capasity"))
    with pytest.raises(ValueError, match=r"capasity.*did you mean"):
        Embedded(config, None, program("umbpd"))
