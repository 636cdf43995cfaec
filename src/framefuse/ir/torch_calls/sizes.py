"""Says of a call of torch whether values of tensors decide sizes of what it gives."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from framefuse.ir.torch_calls.table import TABLE
from framefuse.ir.values import Value

Test = Callable[[Value], bool]


def sizes_from_data(
    name: str, args: Sequence[Value], kwargs: Mapping[str, Value], is_tensor: Test, is_mask: Test
) -> bool:
    """Whether sizes of the result may depend on the values of tensors. ``is_tensor`` tells tensors among the arguments,
    and ``is_mask`` those that choose elements by being true.
    """
    row = TABLE[name]
    if row.data:
        return RULES[row.data](args, kwargs, is_tensor, is_mask)
    if row.sizes is not None:
        return any(_holds(value, is_tensor) for value in (*args[row.sizes :], *kwargs.values()))
    return False


Rule = Callable[[Sequence[Value], Mapping[str, Value], Test, Test], bool]


def _values(args: Sequence[Value], kwargs: Mapping[str, Value], is_tensor: Test, is_mask: Test) -> bool:
    return True


def _alone(args: Sequence[Value], kwargs: Mapping[str, Value], is_tensor: Test, is_mask: Test) -> bool:
    return len(args) + len(kwargs) == 1


def _other_tensors(args: Sequence[Value], kwargs: Mapping[str, Value], is_tensor: Test, is_mask: Test) -> bool:
    """Another operand than the first is a tensor, or there is but one: how often, or where."""
    return len(args) + len(kwargs) == 1 or any(is_tensor(value) for value in (*args[1:], *kwargs.values()))


def _classes(args: Sequence[Value], kwargs: Mapping[str, Value], is_tensor: Test, is_mask: Test) -> bool:
    """No number of classes is given, or the one that stands for the largest value."""
    given = args[1] if len(args) > 1 else kwargs.get("num_classes", -1)
    return is_tensor(given) or (isinstance(given, int) and given == -1)


def _mask(args: Sequence[Value], kwargs: Mapping[str, Value], is_tensor: Test, is_mask: Test) -> bool:
    return _masks((args[1:], *kwargs.values()), is_tensor, is_mask)


def _masks(index: Value, is_tensor: Test, is_mask: Test) -> bool:
    if is_tensor(index):
        return is_mask(index)
    if isinstance(index, (tuple, list)):
        return any(_masks(part, is_tensor, is_mask) for part in index)
    if isinstance(index, slice):
        return any(is_tensor(part) for part in (index.start, index.stop, index.step))
    return False


def _holds(value: Value, is_tensor: Test) -> bool:
    return is_tensor(value) or (isinstance(value, (tuple, list)) and any(_holds(part, is_tensor) for part in value))


# When values decide a size, by what a row says.
RULES: dict[str, Rule] = {
    "values": _values,
    "alone": _alone,
    "other_tensors": _other_tensors,
    "classes": _classes,
    "mask": _mask,
}
