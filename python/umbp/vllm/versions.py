"""Which vLLM this connector knows. Imports no engine."""

import logging
import re

logger = logging.getLogger("vllm.umbp")

OLDEST, NEWEST = (0, 32), (0, 33)


class UnknownEngine(ImportError):
    """This vLLM has another connector interface."""


def check_version(version: str) -> None:
    """Refuses what is too old; warns of what is newer than was tested. A version that is no number is taken as new."""
    known = " to ".join(".".join(map(str, release)) for release in (OLDEST, NEWEST))
    match = re.match(r"(\d+)\.(\d+)", version)
    release = (int(match[1]), int(match[2])) if match else None
    if release is not None and release < OLDEST:
        raise UnknownEngine(f"vLLM is {version}, and UmbpConnector needs {known}: upgrade vLLM")
    if release is None or release > NEWEST:
        logger.warning("vLLM is %s, newer than UmbpConnector was tested with (%s)", version, known)
