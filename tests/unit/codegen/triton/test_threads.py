"""Kernels that compile at once are parsed one after the other: CPython's parser fails of two threads."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

from tests.unit.codegen import kernels as k

from framefuse.codegen.specialisation import Place, Specialisation
from framefuse.codegen.triton.compile import compile_kernel
from framefuse.codegen.triton.target import REFERENCE
from framefuse.ir.dtypes import FLOAT32


def test_kernels_are_parsed_one_after_the_other(monkeypatch):
    from triton.compiler.compiler import ASTSource

    make, busy, most = ASTSource.make_ir, threading.Semaphore(0), []

    def counted(*args):
        busy.release()
        time.sleep(0.01)
        most.append(busy._value)
        try:
            return make(*args)
        finally:
            busy.acquire()

    monkeypatch.setattr(ASTSource, "make_ir", counted)
    nests = [k.pointwise([FLOAT32], k.apply(name, k.load("x0", k.I))) for name in ("sin", "cos", "exp", "abs")]
    special = Specialisation({k.N: 1000})
    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(lambda nest: compile_kernel(nest, special, Place("cpu"), on=REFERENCE), nests))
    assert len({code.binary for code in made}) == 4
    assert most == [1] * 4
