"""Modules compile for a GPU that is not here, are compiled once, and compute what the oracle computes."""

import importlib
import importlib.util
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.unit.codegen import kernels as k
from tests.unit.codegen.triton.product_kernels import K, M, N, linear_relu
from tests.unit.fuse.graphs import Builder, symbol
from tests.unit.fuse.test_schedule import layer_norm, softmax

from framefuse.codegen.disk_cache import DiskCache
from framefuse.codegen.optimise import optimised
from framefuse.codegen.specialisation import Choice, Place, Specialisation
from framefuse.codegen.triton import candidates, compile_kernel, signature, text
from framefuse.codegen.triton import compile as module
from framefuse.codegen.triton.blocks import choose
from framefuse.codegen.triton.compile import Compiler
from framefuse.codegen.triton.emitter import emit
from framefuse.codegen.triton.pointwise import NEAR, OWN
from framefuse.codegen.triton.stages import run
from framefuse.codegen.triton.target import REFERENCE
from framefuse.codegen.triton.widths import LIMIT
from framefuse.codegen.unsupported import Unsupported
from framefuse.fuse import fuse
from framefuse.ir.dtypes import BFLOAT16, BOOL, FLOAT16, FLOAT32, FLOAT64, INT8, INT32, INT64
from framefuse.ir.loops import Buffer, Check, Load, Loop, LoopKind, Scratch, Store
from framefuse.ir.loops.key import with_lines
from framefuse.ir.numbers import Symbol, expr
from framefuse.ir.ops import TABLE
from framefuse.ir.schedule import RunKernel
from framefuse.ir.source import Line
from framefuse.ir.target import Target

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
GPU = Target("cpu", "triton", launch=2500.0, products=False, scratch=False)
HERE = Place("cpu")
FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[3]


def test_kernels_compute_what_the_oracle_computes_under_the_interpreter():
    """The interpreter is chosen when Triton is imported: the tests that need it run in a process of their own."""
    files = sorted(map(str, FOLDER.glob("test_interpreted_*.py")))
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *files],
        cwd=ROOT,
        env={**os.environ, "TRITON_INTERPRET": "1", "FRAMEFUSE_CACHE": "0", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stdout[-6000:] + run.stderr[-2000:]
    assert " passed" in run.stdout


def compiled(kernel, **hints):
    known = {number.symbol: hints.get(number.symbol.name, 64) for number in kernel.numbers}
    return compile_kernel(kernel, Specialisation(known), HERE, on=REFERENCE)


ROWS = [
    k.softmax(), k.layer_norm(), k.row_operation("argmax"), k.row_operation("max", BFLOAT16), k.column_operation("sum"),
    k.row_operation("any", BOOL), k.row_operation("prod", INT8), k.chain_sum(5),
]  # fmt: skip


@pytest.mark.parametrize("kernel", ROWS, ids=range(len(ROWS)))
def test_nests_compile_for_a_gpu(kernel):
    made = compiled(kernel, rows=8, cols=300, n=5000)
    assert made.binary[1:4] == b"ELF" and made.function == 0
    assert [kind for kind, _ in made.arguments] == ["pointer"] * len(kernel.buffers) + ["int64"] * len(kernel.numbers)
    assert made.name == "framefuse_test" and made.warps >= 1


@pytest.mark.parametrize(
    ("kernel", "hints"),
    [
        (k.softmax(), {"rows": 8192, "cols": 4096}),
        (k.column_operation("sum"), {"rows": 4096, "cols": 4096}),
        (k.pointwise([FLOAT32], k.apply("sin", k.load("x0", k.I))), {"n": 1 << 24}),
    ],
    ids=["rows", "across", "points"],
)
def test_every_candidate_compiles_for_a_gpu(kernel, hints):
    known = {number.symbol: hints[number.symbol.name] for number in kernel.numbers}
    found = candidates(kernel, known)
    assert 5 <= len(found) <= 12 and found[0] == choose(kernel, known).choice
    for choice in found:
        made = compile_kernel(kernel, Specialisation(known, choice=choice), HERE, on=REFERENCE)
        assert (made.blocks, made.warps) == (choice.points, choice.warps)
    names = {signature(kernel, {**known, k.N: n}, "cpu") for n in (1, 2)}
    assert len(names) == 2 and signature(kernel, known, "cpu") == signature(kernel, known, "cpu")


@pytest.mark.parametrize(
    ("kernel", "hints", "asked"),
    [
        (k.softmax(), {"rows": 8192, "cols": 4096}, [("cols", 1, 4096, 4096)]),
        (k.softmax(), {"rows": 8192, "cols": 4080}, [("cols", 16, 0, 2**63 - 1), ("cols", 1, 0, 4096)]),
        (k.softmax(), {"rows": 8192, "cols": 4081}, [("cols", 1, 0, 4096)]),
        (k.column_operation("sum"), {"rows": 4096, "cols": 4096}, [(n, 16, 0, 2**63 - 1) for n in ("rows", "cols")]),
        (k.column_operation("sum"), {"rows": 4095, "cols": 4095}, []),
    ],
    ids=["filled", "multiples", "rows", "across", "any"],
)
def test_fitted_code_is_shorter(kernel, hints, asked):
    """Code for sizes like the recorded ones says what it asks of them, and leaves out what others need."""
    known = {number.symbol: hints[number.symbol.name] for number in kernel.numbers}
    fitted, general = (module.module_of(kernel, Specialisation(known, fitted=wanted)) for wanted in (True, False))
    assert [(str(fit.value), fit.multiple, fit.low, fit.high) for fit in fitted.fits] == asked
    assert not general.fits
    if not asked:
        assert fitted.text == general.text
        return
    assert " if " not in fitted.text.partition(f"def {fitted.name}(")[2] and "else:" in general.text
    assert (fitted.parameters, fitted.constants) == (general.parameters, general.constants)
    wanted = [Specialisation(known, fitted=fitted) for fitted in (True, False)]
    binaries = [compile_kernel(kernel, each, HERE, on=REFERENCE) for each in wanted]
    assert len(binaries[0].binary) < 0.8 * len(binaries[1].binary)
    assert binaries[0].fits == fitted.fits and binaries[0].aligned
    same = {(made.blocks, made.warps, made.arguments) for made in binaries}
    assert len(same) == 1, "a launch takes the one or the other"


@pytest.mark.parametrize("rows", [1 << 18, 2])
def test_fitted_code_multiplies_where_each_of_many_elements_divides(rows):
    """A launch checks that the numbers by which a position is divided are the recorded ones."""
    b = Builder(s0=rows, s1=3, s2=5)
    x = b.input((S0, S1, S2), FLOAT32)
    turned = b.reshape(b.permute(x, 0, 2, 1), S0, S1 * S2)
    schedule = fuse(b.graph(b.mul(turned, 2.0)), targets=lambda device: GPU)
    (item,) = (item for item in schedule.items if isinstance(item, RunKernel))
    numbers = zip(item.kernel.numbers, item.numbers, strict=True)
    known = {n.symbol: value.evaluate(b.hints) for n, value in numbers}
    wanted = (Specialisation(known, guarded=True, fitted=fitted) for fitted in (True, False))
    made, general = (module.module_of(item.kernel, each) for each in wanted)
    asked = {(fit.low, fit.high) for fit in made.fits if fit.multiple == 1}
    assert asked == ({(3, 3), (15, 15)} if rows > 2 else set()) and not general.fits
    assert ("* 0 + 15" in made.text) is (rows > 2)


def pooled(b, x, side):
    """The largest of 2 x 2 neighbours."""
    shape = (*x.shape[:-2], expr(side), expr(side))
    lead = (0,) * len(x.shape[:-2])
    steps = (*[1] * len(lead), 2, 2)
    parts = [b.slice(x, (*lead, row, column), shape, steps) for row in (0, 1) for column in (0, 1)]
    return b.maximum(b.maximum(parts[0], parts[1]), b.maximum(parts[2], parts[3]))


@pytest.mark.parametrize("kind", ["windows of pictures", "gates", "few points"])
def test_fitted_code_of_windows_of_pictures_knows_their_sizes(kind):
    """All but how many there are, so that code for other batches is the same; of gates the distances alone."""
    batch = 8 if kind == "few points" else 1 << 15
    b = Builder(s0=batch, s1=64, s2=64)
    if kind == "gates":
        x = b.input((S0, 4 * S1), FLOAT32)
        gates = [b.slice(x, (0, S1 * place), (S0, S1)) for place in range(4)]
        result = b.mul(b.mul(gates[0], gates[1]), b.mul(gates[2], gates[3]))
    else:
        result = pooled(b, b.input((S0, S1, S2), FLOAT32), 32)
    schedule = fuse(b.graph(result), targets=lambda device: GPU)
    (item,) = (item for item in schedule.items if isinstance(item, RunKernel))
    numbers = zip(item.kernel.numbers, item.numbers, strict=True)
    known = {n.symbol: value.evaluate(b.hints) for n, value in numbers}
    made = module.module_of(item.kernel, Specialisation(known, guarded=True, fitted=True))
    fixed = {symbol for fit in made.fits if fit.low == fit.high for symbol in fit.value.symbols}
    every = {n.symbol for n in item.kernel.numbers} - item.kernel.extent.symbols
    if kind == "windows of pictures":
        assert fixed == every and len(fixed) > 2
    elif kind == "gates":
        assert fixed and fixed < every
    else:
        assert not fixed


def test_long_code_is_fitted_but_not_written_twice():
    kernel = k.pointwise([FLOAT32], k.apply("sin", k.load("x0", k.I)))
    known = {number.symbol: 1 << 24 for number in kernel.numbers}
    assert not choose(kernel, known).simple
    fitted, general = (module.module_of(kernel, Specialisation(known, fitted=wanted)) for wanted in (True, False))
    assert [fit.multiple for fit in fitted.fits] == [16] and " // 16 * 16" in fitted.text
    assert "def work(" not in general.text and not general.fits


def test_rows_of_long_code_are_held_where_code_is_fitted():
    """Capped scores: each element is computed once, and not once for each turn that reads it."""
    b = Builder(s0=4096, s1=1024)
    x = b.input((S0, S1), FLOAT32)
    schedule = fuse(b.graph(softmax(b, b.mul(b.tanh(b.div(x, 50.0)), 50.0))), targets=lambda device: GPU)
    (item,) = (item for item in schedule.items if isinstance(item, RunKernel))
    numbers = zip(item.kernel.numbers, item.numbers, strict=True)
    known = {n.symbol: value.evaluate(b.hints) for n, value in numbers}
    assert not choose(item.kernel, known).simple
    made, general = (module.module_of(item.kernel, Specialisation(known, fitted=each)) for each in (True, False))
    assert made.text.count("maths.tanh(") == 1 and "for " not in made.text
    assert (1024, 1024) in {(fit.low, fit.high) for fit in made.fits}
    assert general.text.count("maths.tanh(") == 2 and general.text.count("def ") == 1 and not general.fits


@pytest.mark.parametrize(("lie", "sizes"), [("nt", None), ("tn", (512, 512, 512)), ("nn", (100, 72, 30))])
def test_products_compile_for_a_gpu(lie, sizes):
    kernel = linear_relu(BFLOAT16, lie, sizes)
    known = dict.fromkeys((M, N, K), 1024) if sizes is None else {}
    for choice in (Choice(128, 128, 4, 4, 64), Choice(64, 32, 4, 3, 32)):
        made = module.module_of(kernel, Specialisation(known, guarded=True, choice=choice))
        path = module._written(made, kernel, False)
        arguments = [kind for kind, _ in module._arguments(kernel, made)]
        found = run(module._job(made, path, arguments, REFERENCE, True))
        ptx = found.texts["ptx"]
        assert "wgmma.mma_async" in ptx, "tiles are multiplied by the instruction that Hopper has"
        if sizes is None or sizes[0] == 512:
            assert "cp.async.cg.shared.global" in ptx, "operands are copied by 16 bytes while others are multiplied"
            assert found.shared >= choice.stages * choice.inner * (choice.points + choice.width) * 2
        made = compile_kernel(
            kernel, Specialisation(known, guarded=True, aligned=False, choice=choice), HERE, on=REFERENCE
        )
        assert made.binary and made.warps == 4 and made.blocks == 1


def test_computed_operands_compile_for_a_gpu():
    b = Builder(m=256, k=512)
    x, w = b.input((symbol("m"), symbol("k")), FLOAT32), b.input((256, symbol("k")), FLOAT32)
    left, right = b.cast(b.exp(x), dtype=BFLOAT16), b.cast(w, dtype=BFLOAT16)
    graph = b.graph(b.neg(b.library(torch.nn.functional.linear, [left, right], (symbol("m"), 256), BFLOAT16)))
    kernel = fuse(graph, targets=lambda device: GPU, offers=True).offers[-1].fused.kernel
    known = {number.symbol: 512 for number in kernel.numbers}
    for choice in (Choice(128, 128, 8, 3, 64), Choice(64, 64, 4, 3, 32)):
        made = module.module_of(kernel, Specialisation(known, guarded=True, choice=choice))
        arguments = [kind for kind, _ in module._arguments(kernel, made)]
        found = run(module._job(made, module._written(made, kernel, False), arguments, REFERENCE, True))
        assert "wgmma.mma_async" in found.texts["ptx"] and found.shared < 227 * 1024


def test_a_kernel_with_a_check_is_not_measured():
    plain = k.row_operation("sum")
    (loop,) = plain.body
    checked = replace(plain, body=(replace(loop, body=(Check(k.const(True, BOOL)), *loop.body)),))
    hints = {k.ROWS: 4096, k.COLS: 4096}
    assert len(candidates(plain, hints)) > 1 and candidates(checked, hints) == (choose(checked, hints).choice,)


def long_list(names, dtype):
    """One kernel that stores the result of each row: a buffer for each."""
    body, buffers = [], [Buffer("x", dtype, False), Buffer("y", dtype, False), Buffer("z", dtype, False)]
    for name in names:
        args = [Load("xyz"[n], k.I.expr, dtype) for n in range(TABLE[name].arity)]
        value = k.apply(name, *args)
        buffers.append(Buffer(f"out_{name}", value.dtype, True))
        body.append(Store(f"out_{name}", k.I.expr, value))
    return k.kernel(buffers, [k.N], [Loop(k.I, k.N.expr, tuple(body), LoopKind.PARALLEL_VECTOR)], k.N.expr)


POINTWISE = [op for op in TABLE.values() if op.kind == "pointwise" and op.name not in ("cast", "where")]


@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT64, INT64, INT8, BOOL], ids=str)
def test_every_pointwise_row_compiles_for_a_gpu(dtype):
    domains = {"float": ("any", "number", "float"), "int": ("any", "number", "integral"), "bool": ("any",)}
    names = [op.name for op in POINTWISE if op.domain in domains[dtype.kind]]
    assert compiled(long_list(names, dtype), n=100).binary


@pytest.fixture
def linked(monkeypatch):
    """Grows with each kernel that is linked with libdevice."""
    nvidia = importlib.import_module("triton.backends.nvidia.compiler")
    calls = []

    class Told:
        def __getattr__(self, name):
            if name == "link_extern_libs":
                calls.append(name)
            return getattr(plain, name)

    plain = nvidia.llvm
    monkeypatch.setattr(nvidia, "llvm", Told())
    return calls


def test_common_functions_are_compiled_without_libdevice(linked):
    names = [*sorted(OWN), "sqrt", "div", "abs", "sign", "maximum", "minimum", "reciprocal", "isnan", "neg"]
    assert compiled(long_list(names, FLOAT32), n=100).binary
    near = [k.cast(k.apply(name, *[k.load("x0", k.I)] * TABLE[name].arity), BFLOAT16) for name in (*NEAR, "tanh")]
    for value in near:
        assert compiled(k.pointwise([FLOAT32], value), n=100).binary
    assert compiled(k.softmax(), rows=8, cols=300).binary and compiled(k.layer_norm(), rows=8, cols=300).binary
    assert linked == []
    assert compiled(long_list(["atan"], FLOAT32), n=100).binary and linked == ["link_extern_libs"]


@pytest.mark.parametrize("name", ["erf", "atan"])
def test_a_check_alone_does_not_link_libdevice(linked, name):
    value = k.apply(name, k.apply("sqrt", k.load("x0", k.I)))
    plain = k.pointwise([FLOAT32], value)
    (loop,) = plain.body
    checked = replace(plain, body=(replace(loop, body=(Check(k.apply("ge", value, k.const(0))), *loop.body)),))
    assert compiled(checked, n=100).binary and linked == ["link_extern_libs"] * (name == "atan")


@pytest.mark.parametrize(("rows", "cols"), [(8, 5000), (100000, 64)], ids=["a row", "rows"])
def test_sines_of_tiles_and_scalars_compile_for_a_gpu(linked, rows, cols):
    """Of every element, of a value of each row, and of one of the whole kernel."""
    at = k.I.expr * k.COLS.expr + k.J.expr
    wave = k.apply("add", k.apply("sin", k.load("x", at)), k.apply("cos", k.load("y", k.I)))
    wave = k.apply("mul", wave, k.apply("cos", k.load("z", 0)))
    body = (Loop(k.J, k.COLS.expr, (Store("out", at, wave),), LoopKind.VECTOR),)
    buffers = [Buffer("x", FLOAT32, False), Buffer("y", FLOAT32, False), Buffer("z", FLOAT32, False)]
    buffers.append(Buffer("out", FLOAT32, True))
    kernel = k.kernel(buffers, [k.ROWS, k.COLS], [Loop(k.I, k.ROWS.expr, body, LoopKind.PARALLEL)], k.ROWS.expr)
    assert compiled(kernel, rows=rows, cols=cols).binary and linked == []


def test_equal_kernels_are_compiled_once(tmp_path):
    first, second = Compiler(DiskCache(tmp_path)), Compiler(DiskCache(tmp_path))
    kernel = k.row_operation("sum")
    hints = {k.ROWS: 8, k.COLS: 100}
    place = Place("cuda:0")

    def code(compiler, aligned):
        one = module.emitted(kernel, Specialisation(hints, aligned=aligned), place, REFERENCE)
        kinds = [kind for kind, _ in one.kinds]
        return compiler.code(one.key, one.module, one.path, kinds, one.on, one.wide, True)

    codes = [code(first, True)[0] for _ in range(2)]
    assert codes[0] is codes[1] and first.compiled == 1
    again, seconds = code(second, True)
    assert second.compiled == 0 and again.binary == codes[0].binary and "compile" not in seconds
    other, _ = code(second, False)
    assert second.compiled == 1 and other is not again


def assembly(make, *inputs, hints=None, fitted=False):
    """The PTX of the only kernel, or of all, that a GPU gets for a graph; ``fitted``: for sizes like these alone."""
    b = Builder(**(hints or {}))
    nodes = [b.input(*given) if isinstance(given[0], tuple) else b.input(given) for given in inputs]
    schedule = fuse(b.graph(make(b, *nodes)), targets=lambda device: GPU)
    found = []
    for item in schedule.items:
        if isinstance(item, RunKernel):
            numbers = zip(item.kernel.numbers, item.numbers, strict=True)
            known = {n.symbol: value.evaluate(b.hints) for n, value in numbers if not n.real}
            made = emit(item.kernel, Specialisation(known, guarded=True, fitted=fitted))
            arguments = [kind for kind, _ in module._arguments(item.kernel, made)]
            binary = run(module._job(made, module._written(made, item.kernel, False), arguments, REFERENCE, True))
            assert binary.code[1:4] == b"ELF"
            found.append(binary.texts["ptx"])
    return found


def narrowed(make):
    return lambda b, x, *rest: b.cast(make(b, b.cast(x, dtype=FLOAT32), *rest), dtype=BFLOAT16)


ROWS16 = ((8192, 4096), BFLOAT16)
S0, S1, S2, S3, S4 = (symbol(f"s{number}") for number in range(5))
SIZES = {"s0": 8192, "s1": 4096, "s2": 8193, "s3": 4095, "s4": 50257}
LARGE = {
    "add": (lambda b, x, y: b.add(x, y), (1 << 26,), (1 << 26,)),
    "bias": (lambda b, x, y: b.mul(b.add(x, y), 2.0), (8192, 4096), (4096,)),
    "softmax": (narrowed(softmax), ROWS16),
    "softmax of any size": (narrowed(softmax), ((S0, S1), BFLOAT16)),
    "softmax of odd rows": (narrowed(softmax), ((S0, S4), BFLOAT16)),
    "layer norm": (narrowed(layer_norm), ROWS16, (4096,), (4096,)),
    "transpose": (lambda b, x: b.add(b.permute(x, 1, 0), 1.0), (8192, 4096)),
    "columns": (lambda b, x: b.reduce("sum", x, 0), (8192, 4096)),
    "everything": (lambda b, x: b.reduce("sum", x, 0, 1), (8192, 8192)),
    "add of odd sizes": (lambda b, x: b.add(x, 1.0), ((S2, S3), BFLOAT16)),
    "everything of odd sizes": (lambda b, x: b.reduce("sum", x, 0, 1), (S2, S3)),
}


@pytest.mark.parametrize("name", LARGE)
def test_what_a_gpu_gets_moves_16_bytes_at_once(name):
    make, *inputs = LARGE[name]
    texts = [re.sub(r"\.L[12]::\w+", "", text) for text in assembly(make, *inputs, hints=SIZES)]
    wide = "ld.global.v4.b32", "cp.async.cg.shared.global"  # to registers, and to shared memory in turns that overlap
    loads = [text for text in texts if any(name in text for name in wide)]
    assert len(loads) == len(texts) == (2 if name.startswith(("columns", "everything")) else 1)
    if len(texts) == 1:
        assert "st.global.v4.b32" in texts[0]


@pytest.mark.parametrize(
    ("dtype", "columns", "wide"), [(FLOAT32, 252, "v4.b32"), (BFLOAT16, 264, "v4.b32"), (BFLOAT16, 252, "v2.b32")]
)
def test_rows_that_are_multiples_of_a_vector_alone_move_by_vectors(dtype, columns, wide):
    def rows(b, x):
        return b.cast(b.reduce("sum", b.cast(x, dtype=FLOAT32), 2), dtype=dtype)

    (text,) = assembly(rows, ((S0, S1, S2), dtype), hints={"s0": 250, "s1": 254, "s2": columns}, fitted=True)
    assert f"ld.global.{wide}" in text


def test_turns_across_memory_overlap_for_sizes_like_the_recorded_ones_alone():
    """For other sizes single words would be written across the banks of shared memory."""

    def columns(b, x):
        return b.reduce("amax", x, 1)

    def text(fitted, size):
        return assembly(columns, ((S0, S1, S2), FLOAT32), hints={"s0": 250, "s1": 254, "s2": size}, fitted=fitted)[0]

    assert "cp.async" in text(True, 252)
    assert "cp.async" not in text(False, 252) and "cp.async" not in text(True, 253)


def test_rows_over_two_axes_of_odd_sizes_have_code():
    """Where such a row goes on is decoded at each element: it begins nowhere that is known in front of its loop."""

    def logsumexp(b, x):
        wide = b.cast(x, dtype=FLOAT32)
        top = b.reduce("amax", wide, 0, 2)
        away = b.sub(wide, b.reshape(top, 1, S1, 1))
        return b.cast(b.add(b.log(b.reduce("sum", b.exp(away), 0, 2)), top), dtype=BFLOAT16)

    assert assembly(logsumexp, ((S0, S1, S2), BFLOAT16), hints={"s0": 255, "s1": 257, "s2": 253})


def messages(b, x, w, source, target):
    sent = b.take(x, source)
    if x.dtype is not FLOAT16:  # whose arithmetic is done in 32 bits
        sent = b.mul(sent, b.reshape(w, *w.shape, 1))
    return b.scatter_add(b.node("full", (), x.shape, x.dtype, value=0.0), b.reshape(target, *w.shape, 1), sent, 0)


@pytest.mark.parametrize("columns", [64, 7, symbol("s2")])
@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT64, INT32, INT64, FLOAT16])
def test_sums_at_positions_are_atomic_in_memory(dtype, columns):
    """Nothing waits for what was there, and where rows allow it four elements go at once."""
    hints = {"s0": 100000, "s1": 1000000, "s2": 64}
    inputs = (((S0, columns), dtype), ((S1,), dtype), ((S1,), INT64), ((S1,), INT64))
    first, second = assembly(messages, *inputs, hints=hints)
    assert "red." not in first and "atom." not in first
    kind = {FLOAT16: "f16", FLOAT32: "f32", FLOAT64: "f64", INT32: "u32", INT64: "u64"}[dtype]
    # An older Triton takes the form that returns what was there, and drops it.
    assert "red.global" in second or "atom.global" in second
    assert f".{kind}" in second and ".relaxed.add" in second
    if dtype is FLOAT32 and columns == 64:
        assert ".global.gpu.relaxed.add.v4.f32" in second


def test_a_generated_file_that_was_altered_is_written_again(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_modules", lambda keep: DiskCache(tmp_path / "kernels"))
    made = emit(k.softmax(), Specialisation())
    path = module._written(made, k.softmax(), False)
    whole = path.read_text()
    assert whole.endswith(made.text) and whole.startswith("# def test(")
    path.write_text(whole[: len(whole) // 2])
    assert module._written(made, k.softmax(), False) == path and path.read_text() == whole


def test_positions_are_narrow_only_where_they_surely_fit():
    hints = {k.ROWS: 8, k.COLS: 100}
    assert emit(k.softmax(), Specialisation(hints)).width.integer == "tl.int64"
    guarded = emit(k.softmax(), Specialisation(hints, guarded=True)).width
    assert guarded.integer == "tl.int32"
    values = {k.ROWS: 40000, k.COLS: 60000}
    assert max(limit.evaluate(values) for limit in guarded.limits) >= 40000 * 60000
    assert emit(k.softmax(), Specialisation(values, guarded=True)).width.integer == "tl.int64"


@pytest.mark.parametrize(
    ("dim", "fits", "beyond"),
    [
        (1, (128, 4096, 4095), (129, 4096, 4096)),
        (2, (1, 32768, 65535), (1, 32768, 65537)),
        (1, (2, 3, 5), (3, 65536, 65536)),
    ],
)
def test_positions_are_narrow_up_to_the_last_element_that_they_reach(dim, fits, beyond):
    """Few elements less than 2 ** 31 lie in 128 x 4096 x 4095."""

    def made(sizes, guarded=True):
        b = Builder(s0=sizes[0], s1=sizes[1], s2=sizes[2])
        total = b.reduce("sum", b.input((S0, S1, S2), FLOAT32), dim)
        schedule = fuse(b.graph(total), targets=lambda device: GPU)
        item = next(item for item in schedule.items if isinstance(item, RunKernel))
        known = {n.symbol: v.evaluate(b.hints) for n, v in zip(item.kernel.numbers, item.numbers, strict=True)}
        return item, module.module_of(item.kernel, Specialisation(known, guarded=guarded)).width

    item, narrow = made(fits)
    assert narrow.integer == "tl.int32" and made(fits, False)[1].integer == "tl.int64"
    assert made(beyond)[1].integer == "tl.int64"

    def holds(*sizes):
        values = {Symbol(f"s{place}"): size for place, size in enumerate(sizes)}
        known = {n.symbol: v.evaluate(values) for n, v in zip(item.kernel.numbers, item.numbers, strict=True)}
        return all(0 <= limit.evaluate(known) < LIMIT for limit in narrow.limits)

    assert holds(*fits) and not holds(*beyond)
    assert all(
        holds(*(size if place != which else few for place, size in enumerate(fits)))
        for which in range(3)
        for few in (0, 1)
    )


def test_a_module_says_what_it_computes(golden):
    golden(text(k.softmax(), {k.ROWS: 8, k.COLS: 100}))


def test_a_row_that_fills_its_tile_has_code_without_a_mask():
    def branches(columns):
        return emit(k.softmax(), Specialisation({k.ROWS: 8, k.COLS: columns})).text.count(" == BLOCK0:")

    assert [branches(columns) for columns in (64, 96, 100, 4096)] == [1, 0, 0, 1]
    assert compiled(k.softmax(), n0=8, n1=128).binary


def test_a_private_row_is_refused():
    kernel = k.kernel([], [], [Scratch("s", FLOAT32, expr(4))])
    with pytest.raises(Unsupported):
        emit(kernel, Specialisation())


@pytest.mark.parametrize("kept", [False, True])
def test_files_are_kept_where_the_place_says_so(kept, tmp_path, monkeypatch):
    monkeypatch.setenv("FRAMEFUSE_CACHE", "0" if kept else "1")
    monkeypatch.setattr(module, "_modules", lambda keep: DiskCache(tmp_path / ("user" if keep else "process")))
    compiler = Compiler(DiskCache(tmp_path / "binaries"))
    monkeypatch.setattr(module, "PROCESS", compiler)
    made = compile_kernel(k.softmax(), Specialisation(), Place("cpu", keep=kept), on=REFERENCE)
    assert Path(made.path).parent == tmp_path / ("user" if kept else "process")
    assert (tmp_path / "binaries").exists() is kept and compiler.compiled == 1


@pytest.mark.parametrize("make", [k.softmax, k.layer_norm, lambda: k.pointwise([FLOAT32], k.load("x0", k.I))])
def test_what_sizes_share_is_written_once(make):
    kernel, sizes = make(), (1, 16, 1000, 1 << 21, 4096, 16, -3)
    for fitted in (False, True):
        for size in sizes:
            special = Specialisation(dict.fromkeys((n.symbol for n in kernel.numbers), size), True, fitted=fitted)
            one, fresh = emit(kernel, special), emit(replace(kernel), special)
            assert (one.text, one.fits, one.constants) == (fresh.text, fresh.fits, fresh.constants)
            assert one.width == fresh.width
    assert len(kernel.known["optimised"].kernel.known["triton bodies"]) < 2 * len(sizes)


def test_kernels_of_other_lines_share_what_is_known():
    kernel = k.softmax()
    other = with_lines(kernel, (Line("a.py", 3, "f", "x.softmax(1)"),))
    assert optimised(other) is optimised(kernel) and other.lines and not kernel.lines
