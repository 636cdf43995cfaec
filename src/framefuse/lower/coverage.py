"""Lists which of torch's names have a lowering rule, by family."""

from __future__ import annotations

from framefuse.lower.rules import ENTRIES


def coverage() -> dict[str, tuple[str, ...]]:
    """The registered names of each family, sorted; ``Tensor.``, ``F.`` and the like say where a name is limited to."""
    names_by_family: dict[str, set[str]] = {}
    for entry in ENTRIES:
        names_by_family.setdefault(entry.family, set()).update(entry.names)
    return {family: tuple(sorted(names)) for family, names in sorted(names_by_family.items())}
