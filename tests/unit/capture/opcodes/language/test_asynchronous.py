"""Coroutines and asynchronous generators run eagerly, wherever they stand."""

import asyncio

import pytest
import torch
from tests.unit.capture.opcodes.language.table import Row, Table, check

import framefuse

TABLE = Table()
row = TABLE.row


@row(eager="opcode", after=asyncio.run)
def coroutine_made_inside():
    def f(x):
        async def g():
            await asyncio.sleep(0)
            return x * 2

        return g()

    return f


@row(eager="opcode")
def event_loop_inside():
    def f(x):
        async def g():
            return x * 2

        async def main():
            async with asyncio.Lock():
                return [await g() for _ in range(2)]

        return asyncio.run(main())

    return f


@pytest.mark.parametrize("case", TABLE, ids=lambda case: case.name)
def test_asynchronous(case: Row) -> None:
    check(case)


def test_coroutine_function() -> None:
    async def f(x: torch.Tensor) -> torch.Tensor:
        await asyncio.sleep(0)
        return x * 2

    x = torch.ones(3)
    compiled = framefuse.compile(f)
    for _ in range(3):
        assert torch.equal(asyncio.run(compiled(x)), x * 2)
    assert not compiled.hits


def test_asynchronous_generator() -> None:
    async def f(x: torch.Tensor):
        for i in range(3):
            yield x * i

    async def drain(g):
        return [value async for value in g]

    x = torch.ones(3)
    compiled = framefuse.compile(f)
    for _ in range(3):
        for a, b in zip(asyncio.run(drain(compiled(x))), asyncio.run(drain(f(x)))):
            assert torch.equal(a, b)
