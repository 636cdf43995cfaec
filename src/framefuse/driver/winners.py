"""Keeps which form of a kernel measuring has chosen, in this process and on disk."""

from __future__ import annotations

import json
from dataclasses import dataclass

from framefuse.codegen.disk_cache import DiskCache, cache_folder
from framefuse.codegen.specialisation import Choice


@dataclass(frozen=True, slots=True)
class Winner:
    """What is kept on disk of one kernel; ``share`` is that of a copy's bandwidth, 0 where it was not measured."""

    choice: Choice
    first: float
    best: float
    candidates: int
    share: float = 0.0

    def to_bytes(self) -> bytes:
        """As it lies on disk."""
        choice = (self.choice.points, self.choice.width, self.choice.warps, self.choice.stages, self.choice.inner)
        return json.dumps([choice, self.first, self.best, self.candidates, self.share]).encode()

    @staticmethod
    def of(content: bytes | None) -> Winner | None:
        """What :meth:`to_bytes` wrote; None for anything else."""
        try:
            choice, first, best, count, share = json.loads(content or b"null")
            return Winner(Choice(*map(int, choice)), float(first), float(best), int(count), float(share))
        except (ValueError, TypeError):
            return None


class Winners:
    """The winners of this process and, where they may be kept, of earlier ones, by a signature."""

    def __init__(self, disk: DiskCache) -> None:
        self.disk = disk
        self._known: dict[str, Winner] = {}

    def get(self, key: str, keep: bool) -> Winner | None:
        winner = self._known.get(key)
        if winner is None and keep:
            winner = Winner.of(self.disk.read(key))
            if winner is not None:
                self._known[key] = winner
        return winner

    def put(self, key: str, winner: Winner, keep: bool) -> None:
        self._known[key] = winner
        if keep:
            self.disk.write(key, winner.to_bytes())


PROCESS = Winners(DiskCache(cache_folder("tuning")))


def describe(choice: Choice) -> str:
    """A choice in words."""
    if choice.inner:
        tile = f"tiles of {choice.points} x {choice.width} x {choice.inner}"
        return f"{tile}, {choice.warps} warps, {choice.stages} stages"
    parts = [f"{choice.points} points" if choice.points != 1 else "1 point"]
    if choice.width:
        parts.append(f"turns of {choice.width}")
    parts.append(f"{choice.warps} warps" if choice.warps != 1 else "1 warp")
    if choice.stages > 1:
        parts.append(f"{choice.stages} stages")
    return ", ".join(parts)
