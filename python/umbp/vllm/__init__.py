"""vLLM on the block store. Importing this package imports no engine.

`UmbpConnector` is the connector: `kv_connector="UmbpConnector"`, `kv_connector_module_path="umbp.vllm"`. The module
`umbp.vllm.runtime` gives umbpd to vLLM's own UMBPStoreConnector instead.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from umbp.vllm.connector import UmbpConnector

__all__ = ["UmbpConnector"]


def __getattr__(name: str) -> Any:
    if name == "UmbpConnector":
        from vllm import __version__

        from umbp.vllm.versions import check_version

        # Before the connector imports names that an older engine does not have.
        check_version(__version__)
        from umbp.vllm.connector import UmbpConnector

        return UmbpConnector
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
