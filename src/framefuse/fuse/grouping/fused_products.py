"""Finds products that the library would compute for one pointwise kernel, and writes both as one kernel."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace

from framefuse.fuse.addressing.ranges import ZERO, address, dense_axes, row_major
from framefuse.fuse.addressing.strided import View, one_batch_stride
from framefuse.fuse.graph.product_calls import product_call
from framefuse.fuse.grouping.cells import Group
from framefuse.fuse.grouping.choices import Factors, FusedProduct, Line
from framefuse.fuse.grouping.groups import Groups
from framefuse.fuse.setting import Setting
from framefuse.ir import costs
from framefuse.ir.graph import Node
from framefuse.ir.numbers import Expr, Symbol, product

DTYPES = ("float16", "bfloat16")  # float32 depends on settings that may change, and float64 has no tiles


def with_fused_products(groups: Groups, setting: Setting) -> Groups:
    """The groups with the products that a kernel of ours could compute with what is done with them, where somebody asks
    for offers or takes one.
    """
    if not setting.offers and not setting.products:
        return groups
    position = {node: number for number, node in enumerate(groups.graph.nodes)}
    products = {(position[each.node], bool(each.before)): each for each in _fused_products(groups, setting)}
    return replace(groups, products=products) if products else groups


def _fused_products(groups: Groups, setting: Setting) -> Iterator[FusedProduct]:
    """In program order; again with what makes their operands, where something does."""
    for node in groups.graph.nodes:
        if node.op == "library":
            product = fused_product(groups, node, setting, DTYPES, costs.PRODUCT_LEAST)
            if product is not None:
                yield product
                before = tuple(_before(groups, product))
                if before:
                    yield replace(product, before=before)


def _before(groups: Groups, product: FusedProduct) -> Iterator[tuple[int, Group]]:
    """The kernels that make one operand, which only the product reads."""
    factors = product.factors
    for number, (base, _) in enumerate((factors.left, factors.right)):
        group = groups.home.get(base)
        if group is None or group is product.group or group.node is not None or group.rows is not None:
            continue
        if not factors.whole[number] or base in groups.required or factors.left[0] is factors.right[0]:
            continue
        users, loads = groups.readers.get(base, []), [c for c in group.cells.values() if c.kind == "load"]
        alone = [user.node for user in users] == [product.node] and set(groups.demands.get(base, {})) <= {group}
        large = len(group.cells) > costs.OPERAND_CELLS or len(loads) > costs.OPERAND_LOADS
        if not alone or len(group.roots) > 1 or large:
            continue
        (cell,) = group.roots.values()
        axes = [symbol for position in cell.index for symbol in position.symbols if position is symbol.expr]
        checked = any(each.position is not None for each in group.cells.values())
        if not checked and len(axes) == len(base.shape) and set(axes) == set(group.axes):
            yield number, group


def fused_product(
    groups: Groups, node: Node, setting: Setting, dtypes: Collection[str], least: int
) -> FusedProduct | None:
    """The call ``node`` if it is a product of one of these dtypes, with at least so many rows, columns and terms at the
    recorded sizes, whose only reader is one pointwise kernel.
    """
    target = setting.targets(node.device)
    if target is None or not target.tiles:
        return None
    results = groups.results.get(node, [])
    if len(results) != 1:
        return None
    (result,) = results
    users = groups.demands.get(result, {})
    bound = any(held is result for _, held, _ in groups.graph.bound)
    if len(users) != 1 or bound or result in groups.readers:
        return None  # what else reads it might have to run before the kernel
    ((group, cells),) = users.items()
    if len(cells) != 1 or cells[0].mask or group.node is not None or group.rows is not None:
        return None
    if any(cell.position is not None for cell in group.cells.values()):
        return None  # what is at a position is checked
    if any(root in groups.inside for root in group.roots):
        return None  # a call's result has memory of its own
    if group.covered(cells[0]) != frozenset(group.domain):
        return None
    factors = _factors(groups, node, result) if result.dtype.name in dtypes else None
    if factors is None or any(_hint(groups, size) < least for size in (factors.rows, factors.columns, factors.terms)):
        return None
    product = FusedProduct(node, group, cells[0], factors, result in groups.required)
    return product if axes_of(product) is not None else None


def _hint(groups: Groups, size: Expr) -> int:
    hints = groups.graph.hints
    return size.evaluate({symbol: hints.get(symbol, costs.UNKNOWN) for symbol in size.symbols})


# ---- what a call multiplies


def _factors(groups: Groups, node: Node, result: Node) -> Factors | None:
    """The matrices of a call of the library; None for another call, or for matrices that no steps describe."""
    call = product_call(node)
    if call is None or any(operand.dtype is not result.dtype for operand in node.inputs):
        return None
    layout = call.layout
    first, second = (groups.views[(node, number)] for number in (call.left, call.right))
    if len(second.node.shape) != 2 or len(first.node.shape) < 2:
        return None
    a, b = _matrix(first, layout[0] == "t"), _matrix(second, layout[1] == "t")
    if a is None or b is None:
        return None
    sizes = first.node.shape
    rows, terms = (product(sizes[:-1]), sizes[-1]) if layout[0] == "n" else (sizes[1], sizes[0])
    columns = second.node.shape[1 if layout[1] == "n" else 0]
    if product(result.shape[:-1]) is not rows or result.shape[-1] is not columns:
        return None
    common = _equal(groups, terms, second.node.shape[0 if layout[1] == "n" else 1])
    if common is None:
        return None
    added = None
    if call.bias is not None:
        view = groups.views[(node, call.bias)]
        line = _bias(groups, view, rows, columns)
        if line is None:
            return None
        added = view.base, line
    known = _constants(groups)

    def plain(line: Line) -> Line:
        offset, down, along = (step.substitute(known) for step in line)
        return offset, down, along

    shown = None if added is None else (added[0], plain(added[1]))
    whole = first.is_whole, second.is_whole
    return Factors((first.base, plain(a)), (second.base, plain(b)), shown, rows, columns, common, layout, whole)


def _constants(groups: Groups) -> dict[Symbol, Expr]:
    """Sizes of which guards say what they are, such as those that meet a weight's."""
    constants = {}
    for relation in groups.graph.relations:
        for left, right in ((relation.left, relation.right), (relation.right, relation.left)):
            if relation.op == "==" and right.constant is not None:
                constants.update({symbol: right for symbol in left.symbols if left is symbol.expr})
    return constants


def _equal(groups: Groups, left: Expr, right: Expr) -> Expr | None:
    """Two sizes as one, a constant if one of them is; None where no guard says that they are equal, so that an operand
    might be read beyond its end.
    """
    if left is not right and not any(
        r.op == "==" and (r.left, r.right) in ((left, right), (right, left)) for r in groups.graph.relations
    ):
        return None
    return right if right.constant is not None else left


def _matrix(view: View, transposed: bool) -> Line | None:
    sizes, strides = view.node.shape, view.strides
    if transposed:
        return (view.offset, strides[1], strides[0]) if len(sizes) == 2 else None
    row = one_batch_stride(sizes[:-1], strides[:-1])
    return None if row is None else (view.offset, row, strides[-1])


def _bias(groups: Groups, view: View, rows: Expr, columns: Expr) -> Line | None:
    """One row for all, or a whole matrix."""
    sizes, strides = view.node.shape, view.strides
    if not sizes or len(sizes) > 2 or _equal(groups, sizes[-1], columns) is None:
        return None
    if len(sizes) == 1 or sizes[0].constant == 1:
        return view.offset, ZERO, strides[-1]
    return None if _equal(groups, sizes[0], rows) is None else (view.offset, strides[0], strides[-1])


def axes_of(fused: FusedProduct) -> tuple[list[Symbol], list[Symbol]] | None:
    """The axes of the group that are the rows and the columns of the product, outermost first."""
    group, cell = fused.group, fused.cell
    count = product(cell.node.shape)
    order = dense_axes(address(cell.index, row_major(cell.node.shape)), count, group.axes)
    if order is None:
        return None
    inner = cell.index[-1].symbols
    columns = [axis for axis in reversed(order) if axis in inner]
    rows = [axis for axis in reversed(order) if axis not in inner]
    if not rows or not columns or any(position.symbols & set(columns) for position in cell.index[:-1]):
        return None
    return rows, columns
