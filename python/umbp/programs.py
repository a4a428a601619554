"""The bundled programs. umbpd finds the bundled plugins beside its own folder."""

import os
import sys
from pathlib import Path
from typing import NoReturn

_DIST = Path(__file__).parent / "dist"


def program(name: str) -> Path:
    """The path of `umbpd` or `umbp`."""
    path = _DIST / "bin" / name
    if not path.is_file():
        raise FileNotFoundError(
            f"{path} is not there: this is no wheel with programs; build one with `cargo xtask wheel`"
        )
    return path


def _become(name: str) -> NoReturn:
    path = program(name)
    os.execv(path, [str(path), *sys.argv[1:]])


def umbpd() -> NoReturn:
    """Becomes the daemon."""
    _become("umbpd")


def umbp() -> NoReturn:
    """Becomes the command line."""
    _become("umbp")
