"""Programs and arguments that cannot be compiled give eager's own result or eager's own exception."""

import asyncio

import pytest
import torch

import framefuse
from framefuse.api import compiled_function


def add_one(x):
    return torch.sin(x) + 1


def same(compiled, function, *args, calls=3):
    """The compiled call equals the original's: value or exception type and text."""
    for _ in range(calls):
        try:
            expected = function(*args)
        except Exception as error:
            with pytest.raises(type(error)) as caught:
                compiled(*args)
            assert str(caught.value) == str(error)
            continue
        torch.testing.assert_close(compiled(*args), expected, equal_nan=True)


@pytest.fixture(autouse=True)
def no_grad():
    with torch.no_grad():
        yield


def test_wrong_number_and_names_of_arguments():
    compiled = framefuse.compile(add_one)
    for args, kwargs in (((), {}), ((1, 2), {}), ((), {"y": 1}), ((torch.ones(2),), {"x": 1})):
        with pytest.raises(TypeError) as expected:
            add_one(*args, **kwargs)
        with pytest.raises(TypeError) as caught:
            compiled(*args, **kwargs)
        assert str(caught.value) == str(expected.value)


@pytest.mark.parametrize("wrong", ["text", None, 3, [1.0], object()])
def test_wrong_types_before_and_after_compiling(wrong):
    compiled = framefuse.compile(add_one)
    with pytest.raises(TypeError):
        compiled(wrong)
    x = torch.randn(4)
    same(compiled, add_one, x)
    with pytest.raises(TypeError):
        compiled(wrong)
    same(compiled, add_one, x)


SPECIAL = (
    "dtype", "integer", "bool", "half", "rank", "scalar", "empty", "strided", "expanded", "overlapping", "complex",
    "conjugate", "negative view", "sparse", "csr", "meta", "nested", "quantised", "parameter", "subclass", "inference",
)  # fmt: skip


def special_tensors():
    base = torch.randn(4, 4)
    yield "dtype", base.double()
    yield "integer", torch.arange(16).reshape(4, 4)
    yield "bool", base > 0
    yield "half", base.half()
    yield "rank", base[0]
    yield "scalar", torch.tensor(0.5)
    yield "empty", base[:0]
    yield "strided", base.t()[::2]
    yield "expanded", base[:1].expand(4, 4)
    yield "overlapping", base.flatten().as_strided((3, 3), (1, 1))
    yield "complex", torch.randn(4, dtype=torch.complex64)
    yield "conjugate", torch.randn(4, dtype=torch.complex64).conj()
    yield "negative view", torch.randn(4, dtype=torch.complex64).conj().imag
    yield "sparse", base.to_sparse()
    yield "csr", base.to_sparse_csr()
    yield "meta", base.to("meta")
    yield "nested", torch.nested.nested_tensor([base, base[:2]])
    yield "quantised", torch.quantize_per_tensor(base, 0.1, 0, torch.qint8)
    yield "parameter", torch.nn.Parameter(base)
    yield "subclass", base.as_subclass(Tagged)
    with torch.inference_mode():
        inference = torch.randn(4, 4)
    yield "inference", inference


class Tagged(torch.Tensor):
    """A subclass without behaviour of its own."""


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", SPECIAL)
def test_special_tensors_after_an_ordinary_one(name):
    tensors = dict(special_tensors())
    assert set(tensors) == set(SPECIAL)
    x = tensors[name]
    compiled = framefuse.compile(add_one, options={"numerics": "eager"})  # halves are rounded where eager rounds
    ordinary = torch.randn(4, 4)
    same(compiled, add_one, ordinary)
    for _ in range(3):
        try:
            expected = add_one(x)
        except Exception as error:
            with pytest.raises(type(error)) as caught:
                compiled(x)
            assert str(caught.value).splitlines()[0] == str(error).splitlines()[0]
            continue
        got = compiled(x)
        assert type(got) is type(expected)
        assert got.layout == expected.layout
        if expected.layout == torch.strided and not expected.is_nested and expected.device.type == "cpu":
            assert got.stride() == expected.stride()
            torch.testing.assert_close(got, expected, check_stride=True, equal_nan=True)
    same(compiled, add_one, ordinary)


def test_failing_guards_in_every_position():
    def f(a, b, n, flag, items, *rest, scale=1.0, **more):
        y = a * n + b * scale
        if flag:
            y = -y
        for item in items:
            y = y + item
        for extra in rest:
            y = y * extra
        return y - sum(more.values())

    compiled = framefuse.compile(f)
    a, b, c = torch.randn(3, 4), torch.randn(3, 4), torch.randn(4)
    base = ((a, b, 2, False, [c], c), {"scale": 0.5, "k": 1})
    cases = [base]
    changes = (
        [a.double(), a[0], torch.randn(5, 4)],
        [c, torch.randn(1, 4)],
        [3, 2.5, True],
        [True, 1],
        [[], [c, c], (c,)],
    )
    for position, options in enumerate(changes):
        for option in options:
            args = list(base[0])
            args[position] = option
            cases.append((tuple(args), base[1]))
    cases += [(base[0][:5], base[1]), ((*base[0], c), base[1]), (base[0], {"scale": 0.25}), (base[0], {"k": 1, "j": 2})]
    for args, kwargs in cases + cases[::-1]:
        try:
            expected = f(*args, **kwargs)
        except RuntimeError as error:
            with pytest.raises(RuntimeError) as caught:
                compiled(*args, **kwargs)
            assert str(caught.value) == str(error)
            continue
        torch.testing.assert_close(compiled(*args, **kwargs), expected)


def test_functions_that_raise():
    def f(x, fail):
        y = torch.sin(x)
        if fail:
            raise KeyError("no such thing")
        return y @ y

    compiled = framefuse.compile(f)
    square, flat = torch.randn(3, 3), torch.randn(2, 3)
    for args in ((square, False), (square, True), (flat, False), (square, False), (flat, False), (square, True)):
        same(compiled, f, *args, calls=2)


def test_an_index_out_of_bounds_is_eagers_error():
    def f(table, index):
        return torch.nn.functional.embedding(index, table) + table[index]

    compiled = framefuse.compile(f)
    table = torch.randn(10, 4)
    same(compiled, f, table, torch.tensor([1, 2, 9]))
    same(compiled, f, table, torch.tensor([1, 12, 9]))
    same(compiled, f, table, torch.tensor([0, 3, -1]))
    same(compiled, f, table, torch.tensor([5]))


def test_integer_division_by_zero_is_eagers_error():
    def f(a, b):
        return a // b + a % b

    compiled = framefuse.compile(f)
    a = torch.arange(1, 7)
    same(compiled, f, a, torch.tensor([1, 2, 3, -1, -2, 5]))
    same(compiled, f, a, torch.tensor([1, 2, 0, -1, -2, 5]))


def test_what_is_not_a_python_function():
    x = torch.randn(3)
    scripted = torch.jit.trace(add_one, x) if hasattr(torch.jit, "trace") else add_one
    for function in (torch.sin, len, scripted):
        same(framefuse.compile(function), function, x)


def test_recursion():
    def depth(x, n):
        return x if n == 0 else depth(torch.cos(x), n - 1) + 1

    compiled = framefuse.compile(depth)
    same(compiled, depth, torch.randn(3), 5)
    same(compiled, depth, torch.randn(3), 2)

    def endless(x):
        return endless(x + 1)

    with pytest.raises(RecursionError):
        framefuse.compile(endless)(torch.zeros(1))


def test_a_compiled_function_that_calls_itself_and_others():
    @framefuse.compile
    def halve(x, n):
        return x if n == 0 else halve(x * 0.5, n - 1)

    x = torch.randn(3)
    for _ in range(3):
        torch.testing.assert_close(halve(x, 3), x * 0.125)


def test_generators_and_coroutines():
    def numbers(x):
        for index in range(3):
            yield x + index

    async def later(x):
        return x + 1

    x = torch.randn(3)
    for _ in range(3):
        assert [torch.equal(a, b) for a, b in zip(framefuse.compile(numbers)(x), numbers(x), strict=True)]
        torch.testing.assert_close(asyncio.run(framefuse.compile(later)(x)), x + 1)


def test_tensors_under_function_transforms_and_forward_mode():
    x, tangent = torch.randn(3, 4), torch.randn(3, 4)
    compiled = framefuse.compile(add_one)
    same(compiled, add_one, x)
    torch.testing.assert_close(torch.func.vmap(compiled)(x), torch.func.vmap(add_one)(x))
    with torch.enable_grad():
        got = torch.func.jvp(compiled, (x,), (tangent,))
        torch.testing.assert_close(got, torch.func.jvp(add_one, (x,), (tangent,)))
        total = torch.func.grad(lambda x: compiled(x).sum())(x)
        torch.testing.assert_close(total, torch.cos(x))
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, tangent)
        value = torch.autograd.forward_ad.unpack_dual(compiled(dual))
        torch.testing.assert_close(value.tangent, torch.cos(x) * tangent)


def test_torch_state_that_changes_what_operations_mean():
    def f(x):
        return torch.zeros(3) + x.sum() + (x @ x).mean()

    compiled = framefuse.compile(f)
    x = torch.randn(4, 4)
    same(compiled, f, x)
    torch.set_default_dtype(torch.float64)
    try:
        assert compiled(x).dtype == f(x).dtype == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(compiled(x), f(x))
    with torch.inference_mode():
        assert compiled(x).is_inference()
    with torch.device("meta"):
        assert compiled(x).device == f(x).device == torch.device("meta")
    same(compiled, f, x)


def test_gradients_are_eagers_in_both_modes():
    compiled = framefuse.compile(add_one)
    x = torch.randn(4)
    same(compiled, add_one, x)
    with torch.enable_grad():
        for _ in range(4):
            leaf = x.clone().requires_grad_()
            compiled(leaf).sum().backward()
            torch.testing.assert_close(leaf.grad, torch.cos(x))
    assert compiled_function(compiled).dispatch.hits == 5


def test_constant_sizes_of_zero():
    weight = torch.randn(2)

    def f(x):
        return (x * weight).max(-1)[0], (x + 1).amin(-1)

    compiled = framefuse.compile(f, dynamic=False)
    with torch.no_grad():
        for sizes in ((2, 0, 2), (2, 3, 2), (0, 0, 2)):
            x = torch.randn(sizes)
            for found, expected in zip(compiled(x), f(x), strict=True):
                torch.testing.assert_close(found, expected)
    assert len(framefuse.api.compiled_function(compiled).products) == 3


def test_a_size_of_data_raises_also_where_nobody_reads_the_result():
    weight, bias = torch.randn(3), torch.randn(2)

    def f(x):
        found = x[x > 0] * 2
        weight + found
        return bias + 1

    compiled = framefuse.compile(f)
    seen = set()
    with torch.no_grad():
        for count in (3, 3, 1, 2, 3, 4):
            x = torch.tensor([1.0] * count + [-1.0] * (5 - count))
            texts = []
            for run in (f, compiled):
                try:
                    run(x)
                    texts.append("")
                except RuntimeError as error:
                    texts.append(str(error))
            assert texts[0] == texts[1]
            seen.add(texts[0])
    assert len(seen) == 3
    assert compiled.hits + compiled.declines > 3


def test_a_number_of_data_raises_also_where_nobody_reads_the_result():
    seen = []

    def f(x, y):
        try:
            y.sum(int(x.sum()))
        except IndexError as error:
            seen.append(len(error.args))
        return y

    compiled = framefuse.compile(f)
    with torch.no_grad():
        for dim in (0.0, 0.0, 1.0, 5.0, 0.0, 7.0):
            x, y = torch.full((1,), dim), torch.randn(2, 3)
            f(x, y)
            eager = len(seen)
            compiled(x, y)
            assert len(seen) == (2 * eager if eager else 0)
            seen.clear()
    assert compiled.hits + compiled.declines > 3
