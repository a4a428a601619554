"""Where each stored block hangs in its request's chain, so that no parent leaves the store before its child."""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

KEYS_MAX = 65_536
"""Keys remembered, all requests together; beyond it the requests longest without news are forgotten, and their next
blocks begin chains of their own."""


@dataclass
class _Chain:
    """The blocks of one request and group, the root first."""

    keys: list[str] = field(default_factory=list)
    places: dict[str, int] = field(default_factory=dict)

    def add(self, key: str) -> tuple[str | None, int]:
        """A known block keeps its place: a preempted request comes again from its start."""
        place = self.places.setdefault(key, len(self.keys))
        if place == len(self.keys):
            self.keys.append(key)
        return (self.keys[place - 1] if place else None), place


class Chains:
    """What each request has loaded and stored, in order."""

    def __init__(self) -> None:
        self._requests: OrderedDict[str, dict[int, _Chain]] = OrderedDict()
        self._keys = 0

    def extend(self, request: str, keys: Sequence[str], groups: Sequence[int]) -> tuple[list[str | None], list[int]]:
        """Takes a request's next blocks, in order; answers each one's parent (none = a root) and depth."""
        chains = self._requests.setdefault(request, {})
        self._requests.move_to_end(request)
        before = _count(chains)
        parents: list[str | None] = []
        depths: list[int] = []
        for key, group in zip(keys, groups, strict=True):
            parent, depth = chains.setdefault(group, _Chain()).add(key)
            parents.append(parent)
            depths.append(depth)
        self._keys += _count(chains) - before
        while self._keys > KEYS_MAX:
            self._keys -= _count(self._requests.popitem(last=False)[1])
        return parents, depths

    def restart(self, request: str, keys: Sequence[str], groups: Sequence[int]) -> None:
        """Takes the blocks that a request is restored with."""
        self._keys -= _count(self._requests.pop(request, {}))
        self.extend(request, keys, groups)


def _count(chains: dict[int, _Chain]) -> int:
    return sum(len(chain.keys) for chain in chains.values())
