"""What kv_connector_extra_config may say."""

import re
from pathlib import Path
from typing import Any

import pytest

from umbp.vllm import identity
from umbp.vllm.options import ConnectorOptions, OptionError, check_policy, reference_session
from umbp.vllm.versions import UnknownEngine, check_version


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"sockett": "/x"}, "no option 'sockett': did you mean 'socket'?"),
        ({"load_asynch": True}, "did you mean 'load_async'?"),
        ({"zzz": 1}, "known are socket, mode, config"),
        ({"mode": "inline"}, "mode is 'inline': choose one of standalone, embedded"),
        ({"load_async": 1}, "load_async is 1: expected true or false"),
        ({"timeout_ms": True}, "timeout_ms is True: expected a whole number"),
        ({"timeout_ms": "5s"}, "timeout_ms is '5s': expected a whole number"),
        ({"timeout_ms": 0}, "timeout_ms is 0: choose 1 to 3600000 milliseconds"),
        ({"hold_ms": -1}, "hold_ms is -1: choose 0 to 3600000 milliseconds"),
        ({"num_copy_threads": 65}, "num_copy_threads is 65: choose 1 to 64"),
        ({"socket": ""}, "socket is empty"),
        ({"socket": "~/umbpd.sock"}, "socket is '~/umbpd.sock': give an absolute path"),
        ({"key_namespace": ""}, "key_namespace is empty"),
        ({"config": "umbpd.toml"}, "config is 'umbpd.toml' in mode 'standalone'"),
        ({"mode": "embedded", "config": "/nowhere/umbpd.toml"}, "config is '/nowhere/umbpd.toml': no such file"),
    ],
)
def test_a_wrong_option_is_refused_with_its_remedy(given: dict[str, object], message: str) -> None:
    """J1."""
    with pytest.raises(OptionError, match=re.escape(message)):
        ConnectorOptions.read(given)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"timeout_ms": "5s"}, "timeout_ms is '5s': expected a whole number"),
        ({"hold_ms": 1.5}, "hold_ms is 1.5: expected a whole number"),
        ({"num_copy_threads": 0}, "num_copy_threads is 0: choose 1 to 64"),
        ({"socket": 7}, "socket is 7: expected a text or null"),
    ],
)
def test_the_runtime_of_the_engines_own_connector_refuses_the_same_with_the_same_words(
    given: dict[str, object], message: str
) -> None:
    from vllm.distributed.kv_transfer.kv_connector.v1.umbp import UMBPRuntimeConfig, UMBPRuntimeFactory

    import umbp.vllm.runtime  # noqa: F401

    with pytest.raises(OptionError, match=re.escape(message)):
        UMBPRuntimeFactory.build(UMBPRuntimeConfig("embedded", {"load_async": True, "theirs": 1} | given))


def test_what_is_given_is_taken_and_the_rest_has_its_default(tmp_path: Path) -> None:
    file = tmp_path / "umbpd.toml"
    file.touch()
    options = ConnectorOptions.read({"mode": "embedded", "config": str(file), "hold_ms": 0, "socket": None})
    assert options == ConnectorOptions(mode="embedded", config=str(file), hold_ms=0)
    assert options.session("/a/socket").socket == "/a/socket"
    assert options.session().timeout_ms == 2500, "a half for each side"


@pytest.mark.parametrize("policy", ["fail", None, "Recompute"])
def test_a_policy_that_fails_requests_is_refused_unless_allowed(policy: str | None) -> None:
    with pytest.raises(OptionError, match='kv_load_failure_policy="recompute"'):
        check_policy(policy, allowed=False)
    check_policy(policy, allowed=True)
    check_policy("recompute", allowed=False)


def test_hashes_that_differ_in_each_process_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """H1."""
    from vllm.v1.core import kv_cache_utils

    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    identity.check_hashes("sha256")
    identity.check_hashes("sha256_cbor")
    with pytest.raises(identity.UnstableHashes, match="PYTHONHASHSEED=0"):
        identity.check_hashes("xxhash")
    # An engine that knows no fixed seed.
    monkeypatch.delattr(kv_cache_utils, "DEFAULT_NONE_HASH_SEED")
    with pytest.raises(identity.UnstableHashes, match="sha256"):
        identity.check_hashes("sha256")
    monkeypatch.setenv("PYTHONHASHSEED", "7")
    identity.check_hashes("xxhash")


def test_an_engine_that_is_too_old_is_refused_and_a_newer_one_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    """J6."""
    for version in ("0.31.9", "0.9"):
        with pytest.raises(UnknownEngine, match=r"needs 0\.32 to 0\.33: upgrade vLLM"):
            check_version(version)
    for version in ("0.32.0", "0.33.1rc1+cpu"):
        check_version(version)
    assert not caplog.records
    for version in ("0.34.0", "1.0", "dev"):
        check_version(version)
    assert len(caplog.records) == 3


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"hold_ms": -1}, "hold_ms is -1"),
        ({"hold_ms": 1 << 40}, "hold_ms is 1099511627776"),
        ({"timeout_ms": 0}, "timeout_ms is 0"),
        ({"timeout_ms": "5"}, "timeout_ms is '5'"),
        ({"num_copy_threads": -1}, "num_copy_threads is -1"),
        ({"socket": 7}, "socket is 7"),
    ],
)
def test_the_reference_connectors_runtime_refuses_the_same(given: dict[str, Any], message: str) -> None:
    """J1, J2: at start, not as an exception of each lookup."""
    with pytest.raises(OptionError, match=message):
        reference_session(given | {"load_async": "the connector's own"})
    half = reference_session({"timeout_ms": 8, "load_async": "the connector's own"}).timeout_ms
    assert half == 4, "a half for each side"
