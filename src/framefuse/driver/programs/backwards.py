"""Keeps the graphs of backward passes on disk: a process whose programs were kept differentiates nothing again."""

from __future__ import annotations

import functools
import hashlib
import logging
from dataclasses import dataclass

from framefuse.driver.programs import later, programs
from framefuse.driver.programs.functions import function, known
from framefuse.driver.programs.records import read, written
from framefuse.ir.builder import Shape
from framefuse.ir.derivative import Backward, Case, Piece
from framefuse.ir.source import Site

logger = logging.getLogger("framefuse.cache")


@dataclass(frozen=True, slots=True)
class Place:
    """The place on disk of the backward graphs of a ``piece``: that number ``number`` of the program under ``key``."""

    key: str
    number: int
    piece: Piece

    def name(self, case: Case, strides: list[Shape]) -> str:
        """That of the graph for the case, with the saved values lying so."""
        asked = (self.number, case.tangents, case.wanted, strides)
        return hashlib.sha256(f"{self.key}\0{asked!r}".encode()).hexdigest()

    def found(self, name: str) -> Backward | None:
        """What an earlier process made; None where nothing is kept."""
        data = programs.PROCESS.read(name)
        if data is None:
            return None
        try:
            sites = self._sites()
            backward = read(data, lambda parts: sites[parts[0]] if len(parts) == 1 else function(*parts))
            assert isinstance(backward, Backward)
        except Exception as error:  # what was written cannot be read here: it is made anew
            logger.debug("a kept backward could not be read: %s: %s", type(error).__name__, error)
            return None
        return backward

    def keep(self, name: str, backward: Backward) -> None:
        """Has it written soon; nothing where a part of it cannot be."""
        later.PROCESS.put(functools.partial(_keep, name, backward, self._sites()))

    def _sites(self) -> list[Site]:
        """The instructions of the program that the piece's nodes and relations come from, in their order: those of a
        piece that was read are this process's.
        """
        graph = self.piece.primal
        lines = [*(node.line for node in graph.nodes), *(relation.line for relation in graph.relations)]
        return list(dict.fromkeys(line.site for line in lines if line is not None and line.site is not None))


def _keep(name: str, backward: Backward, sites: list[Site]) -> None:
    numbers = {id(site): number for number, site in enumerate(sites)}
    try:
        data = written(backward, lambda each: (numbers[id(each)],) if id(each) in numbers else known(each))
    except Exception as error:
        logger.debug("a backward is not kept: %s: %s", type(error).__name__, error)
    else:
        programs.PROCESS.write(name, data)
