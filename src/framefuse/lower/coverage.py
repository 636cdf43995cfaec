"""Lists which of torch's names have a lowering rule, by family."""

from __future__ import annotations

from framefuse.lower.rules import ENTRIES


def coverage() -> dict[str, tuple[str, ...]]:
    """The registered names of each family, sorted; ``Tensor.``, ``F.`` and the like say where a name is limited to."""
    found: dict[str, set[str]] = {}
    for entry in ENTRIES:
        found.setdefault(entry.family, set()).update(entry.names)
    return {family: tuple(sorted(names)) for family, names in sorted(found.items())}
