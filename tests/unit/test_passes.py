"""Passes and patterns of users: they change what is compiled, are checked, and real models find them."""

from collections.abc import Callable, Iterator

import pytest
import torch

import framefuse
from benchmarks.zoo.torchvision_ops import declare_torchvision_operators
from framefuse.errors import UserError
from framefuse.ir.builder import Builder
from framefuse.ir.graph import Graph, Node
from framefuse.runtime.function import compiled_function

F = torch.nn.functional
UNCHECKED = {"check": False}  # passes that change results, so that they are seen


def hits(compiled) -> int:
    return compiled_function(compiled).dispatch.hits


@pytest.fixture
def handles() -> Iterator[list[framefuse.passes.Registered]]:
    found: list[framefuse.passes.Registered] = []
    yield found
    for handle in found:
        handle.remove()


def swapped(old: str, new: str) -> Callable[[Graph], Graph]:
    """A pass that is easy to see: another pointwise function."""

    def change(node: Node, operands: tuple[Node, ...], build: Builder) -> Node | None:
        return build.pointwise(new, *operands) if node.op == old else None

    def swap(graph: Graph) -> Graph:
        return framefuse.rewritten(graph, change)

    return swap


# ---- passes ----------------------------------------------------------------------------------------------------------


def test_a_pass_changes_what_is_compiled_from_then_on(handles):
    def f(x):
        return torch.sin(x) * 2

    handles.append(framefuse.register_pass("lowered", swapped("sin", "cos"), check=False))
    fast = framefuse.compile(f, options=UNCHECKED)
    fast(torch.randn(4))
    x = torch.randn(7)
    torch.testing.assert_close(fast(x), torch.cos(x) * 2)
    handles[0].remove()
    torch.testing.assert_close(fast(x), torch.cos(x) * 2)  # what was compiled keeps its code
    framefuse.reset()
    fast(x)
    torch.testing.assert_close(fast(x), torch.sin(x) * 2)


def test_a_lowered_graph_is_differentiated_after_the_pass_and_a_backward_graph_is_changed_alone(handles):
    def gradient(stage: str) -> torch.Tensor:
        change = swapped("cos", "sin") if stage == "backward" else swapped("sin", "exp")
        with framefuse.register_pass(stage, change, check=False):
            fast = framefuse.compile(lambda x: torch.sin(x), options=UNCHECKED)
            for _ in range(2):
                x = torch.full((3,), 0.5, requires_grad=True)
                fast(x).sum().backward()
        assert x.grad is not None
        return x.grad

    torch.testing.assert_close(gradient("lowered"), torch.full((3,), 0.5).exp())
    torch.testing.assert_close(gradient("backward"), torch.full((3,), 0.5).sin())


def test_a_forward_pass_sees_what_backward_saves(handles):
    seen: list[int] = []
    handles.append(framefuse.register_pass("forward", lambda graph: seen.append(len(graph.outputs))))
    fast = framefuse.compile(lambda x: torch.tanh(x) * torch.exp(x))
    fast(torch.randn(3))
    fast(torch.randn(3, requires_grad=True))
    assert seen[0] == 1 < seen[1]


def test_passes_run_in_the_order_that_is_asked_for(handles):
    order: list[str] = []
    for name, where in (("first", {}), ("last", {}), ("middle", {"before": "last"}), ("second", {"after": "first"})):
        handles.append(
            framefuse.register_pass("lowered", lambda graph, name=name: order.append(name), name=name, **where)
        )
    framefuse.compile(lambda x: x + 1)(torch.randn(3))
    assert order == ["first", "second", "middle", "last"]


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: framefuse.register_pass("nowhere", lambda graph: graph), "captured, lowered, joint, forward"),
        (lambda: framefuse.register_pass("lowered", 3), "must be callable"),
        (lambda: framefuse.register_pass("lowered", lambda graph: graph, before="none"), "no pass 'none'"),
    ],
)
def test_a_wrong_registration_is_an_error_that_names_the_choice(call, text):
    with pytest.raises(UserError, match=text):
        call()


def test_a_pass_that_raises_or_breaks_the_graph_is_named(handles):
    def broken(graph: Graph) -> Graph:
        raise IndexError("here")

    def other(graph: Graph) -> Graph:
        return framefuse.rewritten(graph, lambda node, operands, build: build.full(1.0, node.dtype, ()))

    for function, text in (
        (broken, "the pass 'broken' raised IndexError: here"),
        (other, "cannot come in the place of"),
        (lambda graph: 3, "gave an int"),
    ):
        with framefuse.register_pass("lowered", function), pytest.raises(UserError, match=text):
            framefuse.compile(lambda x: torch.sin(x) + 1)(torch.randn(3))


@pytest.mark.parametrize("stage", ["joint", "forward", "backward"])
def test_a_pass_of_training_that_raises_is_named(handles, stage):
    def broken(graph: Graph) -> Graph:
        raise IndexError("here")

    handles.append(framefuse.register_pass(stage, broken))
    fast = framefuse.compile(lambda x: (x.sin() * 2).sum())
    x = torch.randn(3, requires_grad=True)
    if stage == "backward":  # that of the recorded call is eager's own
        fast(x).backward()
    for _ in range(2):
        with pytest.raises(UserError, match="the pass 'broken' raised IndexError: here"):
            fast(x).backward()
    handles[-1].remove()
    for _ in range(2):
        x.grad = None
        fast(x).backward()
        torch.testing.assert_close(x.grad, 2 * x.detach().cos())


@pytest.mark.parametrize(("check", "option"), [(True, False), (False, True)])
def test_a_pass_that_changes_results_is_found_by_running_both_graphs(handles, check, option):
    handles.append(framefuse.register_pass("lowered", swapped("sin", "cos"), name="slip", check=check))
    with pytest.raises(UserError, match="the pass 'slip' changes what the program computes: output 0"):
        framefuse.compile(lambda x: torch.sin(x), options={"check": option})(torch.randn(3))


def test_a_pass_may_round_elsewhere_where_results_move_as_far_with_a_rounding_of_the_inputs(handles):
    def reordered(graph: Graph) -> Graph:
        def change(node: Node, operands: tuple[Node, ...], build: Builder) -> Node | None:
            left = operands[0] if operands else node
            if node.op != "mul" or left.op != "mul":
                return None
            return build.pointwise("mul", left.inputs[0], build.pointwise("mul", left.inputs[1], operands[1]))

        return framefuse.rewritten(graph, change)

    handles.append(framefuse.register_pass("lowered", reordered))

    def chain(x, y, z):  # a million times what goes in
        for _ in range(3):
            x = torch.sin(x * y * z) * 100
        return x

    fast = framefuse.compile(chain, options=UNCHECKED)
    fast(*torch.randn(3, 50))
    fast(*torch.randn(3, 60))
    assert hits(fast) == 1


def test_a_report_holds_the_graph_before_and_after_a_pass(handles, tmp_path):
    handles.append(framefuse.register_pass("lowered", swapped("sin", "cos"), name="swap sines", check=False))
    framefuse.compile(lambda x: torch.sin(x) + 1, options={"report": str(tmp_path), **UNCHECKED})(torch.randn(3))
    (file,) = tmp_path.rglob("*swap_sines*")
    before, after = file.read_text().split("# after")
    assert "t0 = torch.sin(" in before
    assert "t0 = torch.cos(" in after


# ---- patterns --------------------------------------------------------------------------------------------------------


def attention(q, k, v, scale):
    return torch.softmax(q @ k.transpose(-1, -2) * scale, -1) @ v


def fused_attention(q, k, v, scale):
    return F.scaled_dot_product_attention(q, k, v, scale=scale)


def divided_attention(q, k, v, root):
    return torch.softmax(q @ k.transpose(-1, -2) / root, -1) @ v


def fused_by_division(q, k, v, root):
    return F.scaled_dot_product_attention(q, k, v, scale=1 / root)


def masked_attention(q, k, v, mask, scale):
    return torch.softmax(q @ k.transpose(-1, -2) * scale + mask, -1) @ v


def fused_with_mask(q, k, v, mask, scale):
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale)


EXAMPLES = (torch.randn(2, 3, 5, 7), torch.randn(2, 3, 6, 7), torch.randn(2, 3, 6, 4), 0.37)


def trained(fast, model, *inputs):
    """The gradients of all parameters, compiled and eager."""
    found = []
    for each in (fast, model):
        loss = each(*inputs).pow(2).sum()
        found.append(torch.autograd.grad(loss, list(model.parameters())))
    return zip(*found, strict=True)


class Attention(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (torch.nn.Linear(32, 32) for _ in range(3))

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = (each(x).view(b, t, 4, d // 4).transpose(1, 2) for each in (self.q, self.k, self.v))
        weights = F.softmax(0.35 * torch.matmul(q, k.transpose(2, 3)), dim=-1)
        return torch.matmul(weights, v).transpose(1, 2).reshape(b, t, d)


def test_attention_with_a_mask_that_is_spread_over_heads(handles):
    masked = (*EXAMPLES[:3], torch.randn(2, 1, 5, 6), EXAMPLES[3])
    handles.append(framefuse.replace(masked_attention, fused_with_mask, masked))

    def program(q, k, v, mask):
        return torch.softmax(mask + 0.5 * (q @ k.transpose(2, 3)), dim=-1) @ v

    fast = framefuse.compile(program)
    for length in (4, 5, 7):
        q, k, v = (torch.randn(2, 3, length, 8) for _ in range(3))
        mask = torch.randn(2, 1, length, length)
        torch.testing.assert_close(fast(q, k, v, mask), program(q, k, v, mask), rtol=1e-4, atol=1e-5)
    assert handles[0].count == 1
    assert hits(fast) == 2


@pytest.mark.parametrize("check", [False, True])
def test_attention_written_by_hand_becomes_the_librarys_for_all_sizes_with_gradients(handles, check):
    handles.append(framefuse.replace(attention, fused_attention, EXAMPLES))
    model = Attention()
    fast = framefuse.compile(model, options={"check": check})
    for length in (9, 9, 13, 1):
        x = torch.randn(2, length, 32)
        with torch.no_grad():
            torch.testing.assert_close(fast(x), model(x))
        for new, old in trained(fast, model, x):
            torch.testing.assert_close(new, old, rtol=1e-4, atol=1e-4)
    assert handles[0].count == 2
    assert hits(fast) >= 4
    assert "softmax" not in str(framefuse.graphs(fast)[0].forward)


def test_the_attention_of_a_vision_transformer_is_found_in_each_layer(handles):
    declare_torchvision_operators()
    transformers = pytest.importorskip("transformers")
    config = transformers.ViTConfig(
        hidden_size=32, num_hidden_layers=3, num_attention_heads=4, intermediate_size=48, image_size=16, patch_size=8,
        attn_implementation="eager",
    )  # fmt: skip
    model = transformers.ViTModel(config).eval()
    handles.append(framefuse.replace(attention, fused_attention, EXAMPLES))
    handles.append(framefuse.replace(divided_attention, fused_by_division, EXAMPLES, name="divided"))
    masked = (*EXAMPLES[:3], torch.randn(2, 1, 5, 6), EXAMPLES[3])  # versions that make a mask of zeros add it
    handles.append(framefuse.replace(masked_attention, fused_with_mask, masked, name="masked"))
    fast = framefuse.compile(model)
    for _ in range(2):
        image = torch.randn(2, 3, 16, 16)
        with torch.no_grad():
            torch.testing.assert_close(fast(image)[0], model(image)[0], rtol=1e-4, atol=1e-5)
    assert sum(handle.count for handle in handles) == 3  # in each version of transformers by one of them
    assert hits(fast) == 1


def test_a_size_that_is_divided_by_is_found_where_it_is_known(handles):
    def rms(x, weight, epsilon):
        return weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + epsilon))

    def fused(x, weight, epsilon):
        return F.rms_norm(x, (x.shape[-1],), weight, epsilon)

    handles.append(framefuse.replace(rms, fused, (torch.randn(2, 3, 5), torch.randn(5), 1e-5)))
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=50, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=48,
    )  # fmt: skip
    model = transformers.LlamaModel(config).eval()
    fast = framefuse.compile(model)
    with torch.no_grad():
        for length in (5, 8):
            tokens = torch.randint(0, 50, (2, length))
            torch.testing.assert_close(fast(tokens)[0], model(tokens)[0])
    assert handles[0].count == 3  # one each, recorded with gradients or without
    assert hits(fast) == 1


def test_an_operator_of_ones_own_comes_in_the_place_of_a_pattern(handles):
    calls = []

    @torch.library.custom_op("framefuse_tests::scaled_sum", mutates_args=())
    def scaled_sum(x: torch.Tensor, y: torch.Tensor, factor: float) -> torch.Tensor:
        calls.append(factor)
        return x + y * factor

    @scaled_sum.register_fake
    def _(x: torch.Tensor, y: torch.Tensor, factor: float) -> torch.Tensor:
        return torch.empty_like(x)

    own = torch.ops.framefuse_tests.scaled_sum
    examples = (torch.randn(3, 4), torch.randn(3, 4), 0.5)
    handles.append(framefuse.replace(lambda x, y, f: x + y * f, lambda x, y, f: own(x, y, f), examples))
    fast = framefuse.compile(lambda x, y: torch.relu(torch.exp(y) * 3.0 + x))
    for size in (5, 6, 1):
        x, y = torch.randn(size, 2), torch.randn(size, 2)
        calls.clear()
        torch.testing.assert_close(fast(x, y), torch.relu(torch.exp(y) * 3.0 + x))
    assert calls == [3.0]
    assert handles[0].count == 1


def doubled(x, y):
    return torch.exp(x * y)


def test_a_pattern_whose_inner_value_is_read_elsewhere_stays(handles):
    handles.append(framefuse.replace(doubled, lambda x, y: torch.exp(y * x), (torch.randn(3), torch.randn(3))))

    def f(x, y):
        product = x * y
        return torch.exp(product), product

    fast = framefuse.compile(f)
    for _ in range(2):
        x, y = torch.randn(5), torch.randn(5)
        torch.testing.assert_close(fast(x, y), f(x, y))
    assert handles[0].count == 0


@pytest.mark.parametrize(
    ("program", "count"),
    [
        (lambda x, y: torch.exp(y * x), 1),
        (lambda x, y: torch.exp(x * x), 1),
        (lambda x, y: torch.exp(x * y) + torch.exp(y * (x + 1)), 2),
        (lambda x, y: torch.exp(x + y), 0),
        (lambda x, y: torch.exp(x.double() * y), 0),  # another dtype
        (lambda x, y: torch.exp(x[:, None] * y), 0),  # other dimensions
        (lambda x, y: torch.exp(torch.exp(x * y) * y), 2),  # one match feeds the next
    ],
)
def test_what_a_pattern_matches(handles, program, count):
    examples = (torch.randn(3), torch.randn(3))
    handles.append(framefuse.replace(doubled, lambda x, y: torch.exp(x) ** y, examples, check=False))
    fast = framefuse.compile(program, options=UNCHECKED)
    for _ in range(2):
        x, y = torch.rand(5), torch.rand(5)
        found = fast(x, y)
    torch.testing.assert_close(found, program(x, y))  # exp(x) ** y == exp(x * y)
    assert handles[0].count == count


def test_a_pattern_is_sought_in_backward_too(handles):
    def slope(g, r):
        return g * (1.0 - r * r)  # of tanh

    handles.append(framefuse.replace(slope, lambda g, r: (1.0 - r * r) * g * 1.0, (torch.randn(4), torch.randn(4))))
    fast = framefuse.compile(lambda x: torch.tanh(x).sum())
    for _ in range(2):
        x = torch.randn(6, requires_grad=True)
        fast(x).backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad, 1 - torch.tanh(x.detach()) ** 2)


@pytest.mark.parametrize(
    ("pattern", "replacement", "text"),
    [
        (lambda x: x + 1, lambda x: x + 2, "other results"),
        (lambda x: (x, x), lambda x: (x, x), "gives a tuple"),
        (lambda x: x.nonzero(), lambda x: x.nonzero(), "cannot be recorded whole|more than compute one tensor"),
        (torch.sin, torch.sin, "Write a Python function"),
    ],
)
def test_functions_that_are_no_pattern_are_told(pattern, replacement, text):
    with pytest.raises(UserError, match=text):
        framefuse.replace(pattern, replacement, (torch.randn(4),))


def test_a_pattern_is_replaced_in_results_and_gradients_at_once():
    def written(x, y):
        return (x * y) * y

    examples = torch.randn(2, 3)
    with framefuse.replace(written, lambda x, y: x * (y * y), examples, stages=("joint",)) as replaced:
        fast = framefuse.compile(lambda x, y: torch.sin(written(x, y)).sum(), options={"check": False})
        for n in (4, 6):
            x, y = torch.randn(n, requires_grad=True), torch.randn(n)
            (gradient,) = torch.autograd.grad(fast(x, y), x)
            torch.testing.assert_close(gradient, torch.cos(x.detach() * y * y) * y * y)
    assert replaced.count > 0
    with pytest.raises(UserError, match="a pattern is one of primitives"):
        framefuse.replace(written, lambda x, y: x, examples, stages=("captured",), check=False)
