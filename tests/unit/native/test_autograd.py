"""Outputs hung into torch's autograd by Attach: gradients, errors and lifetimes are those of eager's own nodes."""

from __future__ import annotations

import gc
import resource
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks

from framefuse import _native
from framefuse.native import abi

WITHOUT = [
    (),
    ("raw_apply",),
    ("grad_mode", "handle"),
    ("version",),
    ("saved_hooks", "keeps_graph", "edges", "anomaly"),
]
Gradients = tuple[torch.Tensor | None, ...]


@pytest.fixture(scope="module", autouse=True, params=WITHOUT, ids=str)
def known(request: pytest.FixtureRequest) -> Iterator[None]:
    abi.initialise(request.param)
    yield
    abi.initialise()


class Product:
    """relu(x * w) and its sum, computed beforehand and attached; saves x, w and relu as themselves, the mask as own."""

    def __init__(self) -> None:
        self.seen: list[tuple[Any, ...]] = []
        self.attach = _native.Attach(
            self.backward,
            self.differentiable,
            inputs=2,
            outputs=2,
            through=3,
            own=1,
            roots=2,
            numbers=1,
            name="Product",
            memory={2: 0},
        )

    def __call__(self, x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.no_grad():
            y = torch.relu(x * w)
            total, mask = y.sum(), (y > 0).float()
        made = self.attach(x, w, y, total, x, w, y, mask, x, w, 7)
        assert made[0] is y and made[1] is total
        return made

    def backward(self, saved: list[Any], tangents: tuple[Any, ...], numbers: tuple[Any, ...], wanted: int) -> Gradients:
        assert not torch.is_grad_enabled()
        x, w, y, mask = saved
        self.seen.append((tuple(t is not None for t in tangents), numbers, wanted))
        assert torch.equal(mask, (y > 0).float())
        return self.formula(x, w, tangents)

    def differentiable(
        self, held: list[Any], tangents: tuple[Any, ...], numbers: tuple[Any, ...], wanted: int
    ) -> Gradients:
        assert torch.is_grad_enabled()
        self.seen.append(("differentiable", numbers, wanted))
        return self.formula(*held[-2:], tangents)  # the roots stand behind what was saved

    @staticmethod
    def formula(x: torch.Tensor, w: torch.Tensor, tangents: tuple[Any, ...]) -> Gradients:
        first, second = tangents
        g = second if first is None else first if second is None else first + second
        g = g * (x * w > 0)
        return g * w, g * x


def eager(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    y = torch.relu(x * w)
    return y, y.sum()


def leaves(*shape: int) -> list[torch.Tensor]:
    return [torch.randn(shape or (3, 4), requires_grad=True) for _ in range(2)]


def equal(left: Any, right: Any) -> bool:
    return all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


LOSSES: dict[str, Callable[[Any, Any], torch.Tensor]] = {
    "first": lambda y, total: (y * y).sum(), "second": lambda y, total: total * 3,
    "both": lambda y, total: (y * total).sum(),
}  # fmt: skip


@pytest.mark.parametrize("loss", LOSSES)
def test_gradients_are_eagers_and_missing_tangents_are_none(loss: str) -> None:
    product = Product()
    for shape in ((3, 4), (5,), (0, 2), ()):
        x, w = leaves(*shape)
        found = torch.autograd.grad(LOSSES[loss](*product(x, w)), (x, w))
        assert equal(found, torch.autograd.grad(LOSSES[loss](*eager(x, w)), (x, w)))
    given = {"first": (True, False), "second": (False, True), "both": (True, True)}[loss]
    assert product.seen == [(given, (7,), 3)] * 4 and product.attach.calls == product.attach.backwards == 4


def test_the_outputs_look_like_those_of_a_node() -> None:
    product = Product()
    x, w = leaves()
    y, total = product(x, w)
    assert type(y.grad_fn).__name__ == "ProductBackward" and y.grad_fn is total.grad_fn
    assert y.grad_fn.name() == "ProductBackward" and "ProductBackward object" in repr(y.grad_fn)
    assert (
        y.requires_grad
        and not y.is_leaf
        and y._version == 0
        and y._base is None
        and y.output_nr == 0
        and total.output_nr == 1
    )
    assert [type(node).__name__ for node, _ in y.grad_fn.next_functions] == ["AccumulateGrad"] * 2
    assert [node.variable is leaf for (node, _), leaf in zip(y.grad_fn.next_functions, (x, w), strict=True)] == [
        True,
        True,
    ]
    total.backward()
    assert equal((x.grad, w.grad), torch.autograd.grad(eager(x, w)[1], (x, w)))


def test_without_grad_mode_nothing_is_attached() -> None:
    product = Product()
    with torch.no_grad():
        y, _ = product(*leaves())
    assert y.grad_fn is None and not y.requires_grad


def test_under_anomaly_mode_nothing_is_attached() -> None:
    product = Product()
    with torch.autograd.set_detect_anomaly(True), pytest.raises(RuntimeError, match="anomalies"):
        product(*leaves())
    assert product(*leaves())[0].grad_fn is not None


def test_a_chain_of_attached_pieces_accumulates() -> None:
    product = Product()
    x, w = leaves()
    y, _ = product(x, w)
    z, _ = product(y, x)
    z.sum().backward()
    a, _ = eager(x, w)
    expected = torch.autograd.grad(eager(a, x)[1], (x, w))
    torch.testing.assert_close((x.grad, w.grad), expected)


def error_of(run: Callable[[], Any]) -> str:
    with pytest.raises(RuntimeError) as error:
        run()
    return str(error.value).replace("ProductBackward", "MulBackward0")


@pytest.mark.parametrize("which", ["x", "w"])
def test_a_saved_input_modified_in_place_is_eagers_error(which: str) -> None:
    def run(function: Callable[..., Any]) -> str:
        leaf, other = leaves()
        values = {"x": leaf * 1, "w": other * 1}
        y, _ = function(values["x"], values["w"])
        values[which].add_(1)
        return error_of(lambda: y.sum().backward())

    ours = run(Product())
    assert "modified by an inplace operation" in ours and "is at version 1; expected version 0" in ours
    assert ours == run(eager)


def inputs_only() -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """x * w, whose saved inputs torch does not hold."""

    def formula(saved: list[Any], tangents: tuple[Any, ...], numbers: tuple[Any, ...], wanted: int) -> Gradients:
        return (tangents[0] * saved[1],)

    attach = _native.Attach(formula, formula, inputs=1, outputs=1, through=2, roots=2)

    def call(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            y = x * w
        return attach(x, y, x, w, x, w)[0]

    return call


SAVED: dict[str, Callable[[], torch.Tensor]] = {
    "leaf": lambda: torch.randn(3, requires_grad=True).requires_grad_(False), "scalar": lambda: torch.randn(()),
    "parameter": lambda: torch.nn.Parameter(torch.randn(2, 3)), "empty": lambda: torch.zeros(0, 3),
    "half": lambda: torch.randn(3).bfloat16(), "view": lambda: torch.randn(4, 6, requires_grad=True)[1:3, ::2],
    "second output": lambda: torch.var_mean(torch.randn(4, 3, requires_grad=True), dim=0)[1],
}  # fmt: skip


@pytest.mark.parametrize("kind", SAVED)
@pytest.mark.parametrize("create_graph", [False, True])
def test_what_torch_does_not_hold_is_checked_in_its_words(kind: str, create_graph: bool) -> None:
    def run(function: Callable[..., torch.Tensor]) -> str:
        torch.manual_seed(0)
        w, x = SAVED[kind](), torch.ones(3, requires_grad=True)
        y = function(x, w)
        torch.autograd.grad(y.sum(), x, retain_graph=True, create_graph=create_graph)
        with torch.no_grad():
            w.add_(1)
            w.mul_(2)
        return error_of(lambda: torch.autograd.grad(y.sum(), x, create_graph=create_graph))

    ours = run(inputs_only())
    assert "is at version 2; expected version 0 instead" in ours
    assert ours == run(torch.mul)


@pytest.mark.parametrize("written", [False, True])
def test_roots_that_were_written_give_no_second_gradients(written: bool) -> None:
    x = torch.randn(3, requires_grad=True)
    root = x.clone()
    y = piece(own=1, roots=1)(root)
    first = torch.autograd.grad(y.sum(), x, retain_graph=True)
    if written:
        with torch.no_grad():
            root.add_(1)
    (found,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    assert found.requires_grad and torch.equal(found.detach(), first[0]) and torch.is_grad_enabled()
    if written:
        said = error_of(lambda: torch.autograd.grad(found.sum(), x))
        assert "modified by an inplace operation" in said


def test_inference_tensors_cannot_be_saved() -> None:
    with torch.inference_mode():
        w = torch.randn(3)
    x = torch.randn(3, requires_grad=True)
    assert error_of(lambda: inputs_only()(x, w)) == error_of(lambda: x * w)


def test_a_saved_output_modified_in_place_is_an_error() -> None:
    x, w = leaves()
    y, _ = Product()(x, w)
    y.add_(1)
    assert "which is output 0 of" in error_of(lambda: y.sum().backward())


def test_retain_graph_and_the_second_backward() -> None:
    x, w = leaves()
    total, expected = Product()(x, w)[1], eager(x, w)[1]
    for _ in range(2):
        total.backward(retain_graph=True)
    total.backward()
    (once,) = torch.autograd.grad(expected, x)
    torch.testing.assert_close(x.grad, 3 * once)
    assert error_of(total.backward) == error_of(expected.backward)


def piece(own: int, roots: int = 0) -> Callable[[torch.Tensor], torch.Tensor]:
    """x * 2, or x * x with a private copy of x, attached without through tensors."""

    def backward(saved: list[Any], tangents: tuple[Any, ...], numbers: tuple[Any, ...], wanted: int) -> Gradients:
        return (tangents[0] * 2 * (saved[0] if saved else 1),)

    def differentiable(held: list[Any], tangents: tuple[Any, ...], numbers: tuple[Any, ...], wanted: int) -> Gradients:
        return (tangents[0] * 2 * (held[-1] if own else 1),)

    attach = _native.Attach(backward, differentiable, inputs=1, outputs=1, own=own, roots=roots)

    def call(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            y = x * x if own else x * 2
        attach(x, y, *[x.detach().clone()] * own, *[x] * roots)
        return y

    return call


def test_own_tensors_free_the_graph_as_eager_does() -> None:
    x, _ = leaves()
    y = piece(own=1)(x).sum()
    y.backward()
    eager_y = (x * x).sum()
    eager_y.backward()
    assert error_of(y.backward) == error_of(eager_y.backward)
    unsaved = piece(own=0, roots=1)(x).sum()  # as eager's x * 2: nothing saved, nothing freed
    for _ in range(2):
        unsaved.backward()
    torch.autograd.grad(unsaved, x, create_graph=True)


def test_any_order_of_derivative_by_the_differentiable_path() -> None:
    product = Product()
    x, w = leaves()

    def third(function: Callable[..., Any]) -> Any:
        y, _ = function(x, w)
        first = torch.autograd.grad((y**3).sum(), (x, w), create_graph=True)
        second = torch.autograd.grad(sum((g * g).sum() for g in first), (x, w), create_graph=True)
        return *first, *second, *torch.autograd.grad(sum((g * g).sum() for g in second), (x, w))

    torch.testing.assert_close(third(product), third(eager))
    assert product.seen[0] == ("differentiable", (7,), 3)


def test_create_graph_notices_modified_tensors_and_freed_ones() -> None:
    leaf, w = leaves()
    x = leaf * 1
    y = Product()(x, w)[0]
    x.add_(1)
    assert "modified by an inplace operation" in error_of(lambda: torch.autograd.grad(y.sum(), w, create_graph=True))
    x, w = leaves()
    _, total = Product()(x, w)
    torch.autograd.grad(total, x)
    assert "a second time" in error_of(lambda: torch.autograd.grad(total, x, create_graph=True))


def test_saved_tensor_hooks_see_through_and_own_tensors() -> None:
    product = Product()
    x, w = leaves()
    packed: list[torch.Tensor] = []

    def pack(tensor: torch.Tensor) -> int:
        packed.append(tensor.detach().clone())
        return len(packed) - 1

    with saved_tensors_hooks(pack, lambda index: packed[index]):
        y = product(x, w)[0]
    assert len(packed) == 4 and equal(packed[:3], (x, w, y)) and packed[3].unique().tolist() in ([0, 1], [1], [0])
    packed[1] = packed[1] * 0 + 1  # what unpack gives is what backward computes with
    gradient = torch.autograd.grad(y.sum(), x)[0]
    assert equal([gradient], [(x > 0).float()])


def test_a_hook_may_run_an_attached_piece() -> None:
    product = Product()
    x, w = leaves()

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        with torch.enable_grad(), saved_tensors_hooks(lambda t: t, lambda t: t):
            other = product(*leaves())
        assert other[0].grad_fn is not None
        return tensor

    with saved_tensors_hooks(pack, lambda t: t):
        total = product(x, w)[1]
    assert equal(torch.autograd.grad(total, (x, w)), torch.autograd.grad(eager(x, w)[1], (x, w)))


def lifetimes(keep: bool) -> list[bool]:
    """Whether an own tensor lives: before backward, in it, after its entry was dropped, after backward."""
    alive: list[bool] = []

    def backward(saved: list[Any], tangents: tuple[Any, ...], numbers: tuple[Any, ...], wanted: int) -> Gradients:
        alive.append(own() is not None)
        _native.saved_drop(saved, 0)
        alive.append(own() is not None)
        assert saved == [None]
        return (tangents[0],)

    attach = _native.Attach(backward, backward, inputs=1, outputs=1, own=1)
    x = torch.ones(2, requires_grad=True)
    tensor = torch.zeros(2)
    own = weakref.ref(tensor)
    (y,) = attach(x, torch.ones(2), tensor)
    del tensor
    alive.append(own() is not None)
    y.backward(torch.ones(2), retain_graph=keep)
    alive.append(own() is not None)
    del y
    assert own() is None
    return alive


def test_a_graph_that_is_not_kept_lets_go_of_each_tensor_as_it_is_read() -> None:
    assert lifetimes(keep=False) == [True, True, False, False]
    assert lifetimes(keep=True) == [True, True, True, True]


def test_saved_drop_takes_several_places() -> None:
    saved: list[Any] = [torch.ones(1) for _ in range(4)]
    alive = [weakref.ref(tensor) for tensor in saved]
    _native.saved_drop(saved, 3, 0)
    assert [entry is None for entry in saved] == [ref() is None for ref in alive] == [True, False, False, True]


def test_saved_drop_refuses_what_is_not_there() -> None:
    for index in (1, -1):
        with pytest.raises(IndexError):
            _native.saved_drop([None], index)
    with pytest.raises(TypeError):
        _native.saved_drop((), 0)  # type: ignore[arg-type]


def test_saved_outputs_make_no_cycle() -> None:
    gc.disable()
    try:
        product = Product()
        x, w = leaves()
        y, total = product(x, w)
        dead = [weakref.ref(t) for t in (y, total)]
        del y, total
        assert [ref() for ref in dead] == [None, None]
        y, total = product(x, w)
        total.backward()
        dead = [weakref.ref(t) for t in (y, total)]
        del y, total
        assert [ref() for ref in dead] == [None, None]
    finally:
        gc.enable()


def test_an_attach_dies_with_its_classes_but_after_its_nodes() -> None:
    product = Product()
    dead, function = weakref.ref(product), weakref.ref(product.attach.function)
    x, w = leaves()
    total = product(x, w)[1]
    del product
    gc.collect()
    assert dead() is not None
    total.backward()
    assert x.grad is not None
    del total
    gc.collect()
    assert dead() is None and function() is None


def test_a_node_can_die_in_a_cycle() -> None:
    class Box:
        pass

    x, w = leaves()
    y, total = Product()(x, w)
    box = Box()
    box.tensor, y.box = total, box  # type: ignore[attr-defined]
    dead = weakref.ref(box)
    del box, y, total
    gc.collect()
    assert dead() is None


def test_many_calls_leave_nothing_behind() -> None:
    product = Product()
    x, w = leaves()

    def run(count: int) -> None:
        for i in range(count):
            total = product(x, w)[1]
            if i % 4 == 0:
                torch.autograd.grad(total, (x, w), retain_graph=i % 8 == 0)
            product.seen.clear()

    def objects() -> int:
        gc.collect()
        return len(gc.get_objects())

    run(1000)
    count, before = objects(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    run(20000 if "raw_apply" in abi.known else 4000)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2000  # KiB
    assert objects() - count < 50


def test_errors_of_the_bodies_reach_the_caller() -> None:
    def fails(*_: Any) -> Any:
        raise KeyError("lost")

    def wrong(*_: Any) -> Any:
        return (None, None)

    x = torch.ones(2, requires_grad=True)
    (y,) = _native.Attach(fails, fails, inputs=1, outputs=1)(x, torch.ones(2))
    with pytest.raises(KeyError, match="lost"):
        y.sum().backward()
    with pytest.raises(KeyError, match="lost"):
        torch.autograd.grad(y.sum(), x, create_graph=True)
    (y,) = _native.Attach(wrong, wrong, inputs=2, outputs=1)(x, x, torch.ones(2))
    y.sum().backward()
    assert x.grad is None


def test_wrong_use_is_refused() -> None:
    attach = Product().attach
    with pytest.raises(TypeError, match="11 values"):
        attach(1, 2)
    with pytest.raises(ValueError, match="inputs=0"):
        _native.Attach(len, len, inputs=0, outputs=1)
    with pytest.raises(ValueError, match="own=-1"):
        _native.Attach(len, len, inputs=1, outputs=1, own=-1)
    with pytest.raises(TypeError, match="callable"):
        _native.Attach(3, len, inputs=1, outputs=1)  # type: ignore[arg-type]
    x, w = leaves()
    with pytest.raises(RuntimeError, match="compiled code only"):
        attach.function.apply(x, w)  # type: ignore[attr-defined]


def test_threads_attach_and_walk_back_side_by_side() -> None:
    product = Product()
    faults: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            generator = torch.Generator().manual_seed(seed)
            for _ in range(100):
                x, w = (torch.randn(4, 3, generator=generator).requires_grad_() for _ in range(2))
                found = torch.autograd.grad(product(x, w)[1], (x, w))
                assert equal(found, torch.autograd.grad(eager(x, w)[1], (x, w)))
        except BaseException as error:
            faults.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults and product.attach.backwards == 400


def test_backward_in_another_thread_than_forward() -> None:
    x, w = leaves()
    _, total = Product()(x, w)
    thread = threading.Thread(target=total.backward)
    thread.start()
    thread.join()
    assert equal((x.grad, w.grad), torch.autograd.grad(eager(x, w)[1], (x, w)))


def test_backward_inside_backward() -> None:
    product = Product()

    def backward(saved: list[Any], tangents: tuple[Any, ...], numbers: tuple[Any, ...], wanted: int) -> Gradients:
        with torch.enable_grad():
            inner = saved[0].detach().requires_grad_()
            (gradient,) = torch.autograd.grad(product(inner, inner)[1], inner)
        return (tangents[0] * gradient,)

    attach = _native.Attach(backward, backward, inputs=1, outputs=1, own=1)
    x = torch.rand(3, requires_grad=True)
    (y,) = attach(x, x.detach() ** 2, x.detach().clone())
    y.sum().backward()
    torch.testing.assert_close(x.grad, 2 * x.detach())


def test_hooks_of_tensors_and_nodes_run() -> None:
    x, w = leaves()
    y = Product()(x, w)[0]
    seen: list[str] = []
    y.register_hook(lambda g: seen.append("tensor") or g * 2)
    y.grad_fn.register_hook(lambda *_: seen.append("node"))
    y.retain_grad()
    y.sum().backward()
    assert seen == ["tensor", "node"] and y.grad is not None
    torch.testing.assert_close(x.grad, 2 * torch.autograd.grad(eager(x, w)[1], x)[0])


@pytest.mark.parametrize("create_graph", [False, True])
def test_only_the_gradients_that_are_wanted_are_asked_for(create_graph: bool) -> None:
    product = Product()
    leaf, w = leaves()
    x = leaf.clone()
    grad = torch.autograd.grad

    def asked(run: Callable[[torch.Tensor], Any]) -> int:
        product.seen.clear()
        run(product(x, w)[1])
        return int(product.seen[0][2])

    assert asked(lambda total: grad(total, w, create_graph=create_graph)) == 2
    assert asked(lambda total: grad(total, (leaf, x), create_graph=create_graph)) == 1
    assert asked(lambda total: grad(total, (w, leaf), create_graph=create_graph)) == 3
    assert asked(lambda total: total.backward(inputs=[w])) == 2
    assert asked(lambda total: total.backward()) == 3 and leaf.grad is not None
    total = product(x, w)[1]
    with torch.set_grad_enabled(create_graph):
        found = total.grad_fn.apply(None, torch.ones(()))  # no engine runs
    assert equal(found, grad(eager(x, w)[1], (x, w))) and product.seen[-1][2] == 3


def test_more_inputs_than_a_word_has_bits() -> None:
    seen: list[int] = []

    def backward(saved: list[Any], tangents: tuple[Any, ...], numbers: tuple[Any, ...], wanted: int) -> Gradients:
        seen.append(wanted)
        return (tangents[0],) * 100

    many = [torch.ones(2, requires_grad=True) for _ in range(100)]
    (y,) = _native.Attach(backward, backward, inputs=100, outputs=1)(*many, torch.ones(2))
    y.sum().backward()  # nothing is saved, so that the graph can be walked again
    torch.autograd.grad(y.sum(), [*many[40:60], many[99]])
    assert seen[1] in (2**100 - 1, sum(2**i for i in (*range(40, 60), 99)))
    assert seen[0] == 2**100 - 1 and all(leaf.grad is not None and leaf.grad.tolist() == [1, 1] for leaf in many)
