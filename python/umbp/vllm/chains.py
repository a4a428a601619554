"""Where each stored block hangs in its request's chain, so that no parent leaves the store before its child."""

from collections import OrderedDict
from collections.abc import Sequence

REQUESTS_MAX = 4096
"""Requests remembered; the one longest without news is forgotten, and its next blocks begin a chain of their own."""


class Chains:
    """The last block of each request and group that was loaded or stored: its key and its depth."""

    def __init__(self) -> None:
        self._tails: OrderedDict[str, dict[int, tuple[str, int]]] = OrderedDict()

    def extend(self, request: str, keys: Sequence[str], groups: Sequence[int]) -> tuple[list[str | None], list[int]]:
        """Takes a request's next blocks, in order; answers each one's parent (none = a root) and depth."""
        tails = self._tails.setdefault(request, {})
        self._tails.move_to_end(request)
        if len(self._tails) > REQUESTS_MAX:
            self._tails.popitem(last=False)
        parents: list[str | None] = []
        depths: list[int] = []
        for key, group in zip(keys, groups, strict=True):
            tail = tails.get(group)
            parent, depth = (tail[0], tail[1] + 1) if tail is not None else (None, 0)
            if parent == key:  # the same block again, after a preemption
                parent, depth = None, 0
            tails[group] = (key, depth)
            parents.append(parent)
            depths.append(depth)
        return parents, depths

    def restart(self, request: str, keys: Sequence[str], groups: Sequence[int]) -> None:
        """Takes the blocks that a request is restored with."""
        self._tails.pop(request, None)
        self.extend(request, keys, groups)
