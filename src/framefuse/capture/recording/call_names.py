"""Says what a torch call does by its name: which row of the table it has, what its result and its sizes depend on."""

from __future__ import annotations

import types

import torch

from framefuse.ir import torch_calls
from framefuse.ir.containers import elements
from framefuse.ir.numpy_numbers import is_numpy_number
from framefuse.ir.own_class import is_a
from framefuse.ir.torch_calls import TABLE
from framefuse.ir.trace import Call
from framefuse.ir.values import Arguments, Keywords, Value

OPERATORS = (torch._ops.OpOverload, torch._ops.OpOverloadPacket)
# Whose operators are torch's own: a row of the table is theirs as well. Any other one has its namespace in its name.
TORCH_NAMESPACES = frozenset((
    "aten", "prims", "prim", "quantized", "c10d", "_c10d_functional", "_c10d_functional_autograd",
))  # fmt: skip

# NumPy's names of parameters, which torch's functions of C take for torch's; some have a parameter of that name.
NUMPYS = {"axis": "dim", "keepdims": "keepdim"}
OWN = frozenset(("segment_reduce", "_segment_reduce", "quantize_per_channel", "fake_quantize_per_channel_affine"))
IN_C = frozenset((types.BuiltinFunctionType, types.MethodDescriptorType))
# What makes a tensor of the dtype of NumPy's numbers among its data: how many positions there are up to the data.
TYPED = {"tensor": 1, "as_tensor": 1, "asarray": 1, "new_tensor": 2}

KEPT = "kept "  # begins the names of users' functions that are one call


def typed_by_numbers(name: str, args: Arguments, kwargs: Keywords) -> bool:
    """Whether NumPy's numbers say of what dtype a result is; those of Python's classes follow torch's default."""
    if name not in TYPED or len(args) > TYPED[name] or kwargs.get("dtype") is not None:
        return False
    return _has_numpys((*args, *kwargs.values()))


def _has_numpys(value: Value) -> bool:
    return any(map(_has_numpys, elements(value))) if is_a(value, (tuple, list)) else is_numpy_number(value)


def call_name(function: Value) -> str:
    """The plain name of a torch function; attributes are ``get x`` and ``set x``, overloads lose their suffix, and
    operators that are not torch's own are ``namespace::x``.
    """
    if is_a(function, OPERATORS):
        return _operator_name(function)
    name: str = getattr(function, "__name__", "") or type(function).__name__
    if name == "__get__":
        attribute: str = function.__self__.__name__
        return attribute if TABLE[attribute].view else f"get {attribute}"
    if name == "__set__":
        return f"set {function.__self__.__name__}"
    if "." in name:
        name = name.partition(".")[0]
    return name


def _operator_name(operator: torch._ops.OpOverload | torch._ops.OpOverloadPacket) -> str:
    qualified: str = (
        operator._schema.name if is_a(operator, torch._ops.OpOverload) else operator._qualified_op_name
    )
    space, _, name = qualified.partition("::")
    return name if space in TORCH_NAMESPACES else qualified


def kept_name(function: Value) -> str:
    """The name of a user's function that is one call: no row of the table is about it, whatever it is called."""
    return f"{KEPT}{getattr(function, '__name__', '') or type(function).__name__}()"


def by_torchs_names(function: Value, kwargs: Keywords) -> Keywords:
    """The keywords of a call as torch itself names them: of these alone all that follows knows."""
    if not kwargs or NUMPYS.keys().isdisjoint(kwargs) or type(function) not in IN_C or function.__name__ in OWN:
        return kwargs
    return {NUMPYS.get(key, key): value for key, value in kwargs.items()}


def may_be_random(name: str, kwargs: Keywords) -> bool:
    """Whether a call may advance a generator, so that its state is compared."""
    return TABLE[name].draws or "generator" in kwargs or may_act(name)


def may_act(name: str) -> bool:
    """Whether a call of this name is of the program's own code, which may have any effect."""
    return "::" in name or name.startswith(KEPT)


def is_once(call: Call) -> bool:
    """Whether a call may have effects of its own, which a second one would repeat."""
    return may_act(call.name) or bool(getattr(call.target, "commits", False))


def makes_leaf(kwargs: Keywords) -> bool:
    """Whether a call makes a leaf that gradients are asked of later."""
    return kwargs.get("requires_grad") is True


def sizes_from_data(name: str, args: Arguments, kwargs: Keywords) -> bool:
    """Whether sizes of the result may depend on the values of tensors."""
    return torch_calls.sizes_from_data(name, args, kwargs, _is_tensor, _is_mask)


def _is_tensor(value: Value) -> bool:
    return is_a(value, torch.Tensor)


def _is_mask(tensor: torch.Tensor) -> bool:
    return tensor.dtype in (torch.bool, torch.uint8)


def sized_by_numbers(name: str) -> bool:
    """Whether sizes of the result may depend on ints among the arguments."""
    row = TABLE[name]
    return row.counts or row.sizes is not None
