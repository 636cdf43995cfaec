"""Answers the torch calls that yield no tensor: metadata as facts or run-time numbers, values and state as stops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from framefuse.capture.numbers import Float, Integer, bare
from framefuse.capture.tensors import dense_order

Answer = Callable[[Any, Any, str, tuple[Any, ...], dict[str, Any]], Any]
ANSWERS: dict[str, Answer] = {}


def call_name(function: Any) -> str:
    """The plain name of a torch function; attributes are ``get x`` and ``set x``, overloads lose their suffix."""
    name: str = getattr(function, "__name__", "") or type(function).__name__
    if name == "__get__":
        attribute: str = function.__self__.__name__
        return attribute if attribute in VIEW_ATTRIBUTES else f"get {attribute}"
    if name == "__set__":
        return f"set {function.__self__.__name__}"
    if "." in name:
        name = name.partition(".")[0]
    return name


# Attributes whose value is a tensor that a call makes.
VIEW_ATTRIBUTES = frozenset(("T", "mT", "H", "mH", "real", "imag", "data"))


def answers(*names: str) -> Callable[[Answer], Answer]:
    def register(answer: Answer) -> Answer:
        for name in names:
            ANSWERS[name] = answer
        return answer

    return register


CONSTANT = (
    "get ndim dim ndimension get dtype get device get layout is_floating_point is_complex is_signed element_size "
    "get itemsize "
    "get is_cuda get is_cpu get is_meta get is_sparse get is_sparse_csr get is_quantized get is_nested get "
    "is_mkldnn get is_xpu get is_mps "
    "get is_xla get is_mtia get is_maia get is_vulkan get is_ipu get is_ort get_device result_type promote_types "
    "can_cast is_tensor "
    "is_conj is_neg is_inference is_shared is_pinned is_distributed get names device get_default_device "
    "get_default_dtype "
    "_assert iinfo finfo has_names is_same_size is_storage is_coalesced is_vulkan_available get is_hpu"
)
CONSTANT_NAMES = CONSTANT.replace("get ", "get_:").split()


def _constant(recorder: Any, function: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    for value in args:
        if isinstance(value, torch.Tensor):
            recorder.number(value)
    if name == "is_same_size":
        recorder.relations.pin_sizes()
    return function(*args, **kwargs)


for _name in CONSTANT_NAMES:
    ANSWERS[_name.replace("get_:", "get ")] = _constant


@answers("get shape", "size")
def _sizes(recorder: Any, function: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    tensor = args[0]
    dim = args[1] if len(args) > 1 else kwargs.get("dim")
    if dim is None:
        return recorder.sizes(tensor)
    dim = dim.plain() if type(dim) is Integer else dim
    function(tensor, dim)  # raises what eager raises
    return recorder.size(tensor, dim) if isinstance(dim, int) else function(tensor, dim)


@answers("numel", "nelement")
def _numel(recorder: Any, function: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    total: Any = 1
    for size in recorder.sizes(args[0]):
        total = total * size
    return total


@answers("__len__")
def _length(recorder: Any, function: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    function(args[0])
    return recorder.size(args[0], 0)


@answers("is_contiguous", "stride", "storage_offset")
def _layout(recorder: Any, function: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    tensor = args[0]
    number = recorder.number(tensor)
    value = function(*args, **kwargs)
    if number is None or name == "storage_offset":
        recorder.kill("tensor-attribute", name) if name == "storage_offset" else None
        return value
    if name == "stride":
        recorder.fix_strides()
    natural = tensor.is_contiguous() and len(args) == 1 and not kwargs
    if not (natural and name == "is_contiguous" and number in recorder.inputs):
        recorder.relations.pin_sizes()
        if not tensor.is_contiguous() and dense_order(tuple(tensor.shape), tensor.stride()) is None:
            recorder.fix_strides()  # strides of no order may be any others at the next call, dense ones too
    return value


@answers("get requires_grad")
def _requires_grad(recorder: Any, function: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    recorder.number(args[0])
    recorder.guard_gradients()
    return function(*args)


@answers("new")
def _new(recorder: Any, function: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The sizes of ``new`` may come as a ``torch.Size``; a tuple would be elements."""
    if len(args) == 2 and type(args[1]) is torch.Size and not kwargs:
        return recorder.run(torch.Tensor.new_empty, "new_empty", args, kwargs)
    return recorder.run(function, name, args, kwargs)


@answers("get grad")
def _grad(recorder: Any, function: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    value = function(*args)
    source = recorder.sources.source_of(args[0])
    if source is None:
        recorder.kill("tensor-attribute", "grad")
    elif recorder.alive:
        recorder.sources.read(args[0], "grad", None, value)
    return value


@answers("get grad_fn")
def _grad_fn(recorder: Any, function: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """None for what requires no gradient."""
    if recorder.requires_grad(args[0]) is not False:
        recorder.kill("tensor-attribute", "grad_fn")
    return function(*args)


@answers("type")
def _type(recorder: Any, function: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if len(args) == 1 and not kwargs:
        return _constant(recorder, function, name, args, kwargs)
    return recorder.run(function, name, args, kwargs)


@answers("__iter__")
def _iterate(recorder: Any, function: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    tensor = args[0]
    if tensor.ndim == 0:
        return function(tensor)
    size = recorder.size(tensor, 0)
    if type(size) is Integer:
        size.plain()
    return iter(recorder.run(torch.unbind, "unbind", (tensor, 0), {}))


@answers("unbind")
def _unbind(recorder: Any, function: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    out = recorder.run(function, name, args, kwargs)
    _fix_count(recorder, args[0], (args[1] if len(args) > 1 else kwargs.get("dim", 0)))
    return out


def _fix_count(recorder: Any, tensor: Any, dim: Any) -> None:
    """The number of results depends on this size."""
    if recorder.alive and isinstance(dim, int):
        size = recorder.size(tensor, bare(dim))
        if type(size) is Integer:
            size.plain()


@answers(
    "split", "chunk", "split_with_sizes", "tensor_split", "hsplit", "vsplit", "dsplit", "unsafe_split", "unsafe_chunk"
)
def _split(recorder: Any, function: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    out = recorder.run(function, name, args, kwargs)
    dim = args[2] if len(args) > 2 else kwargs.get("dim", 0)
    counted = name == "split_with_sizes" or (
        name == "split"
        and isinstance(args[1] if len(args) > 1 else kwargs.get("split_size_or_sections"), (list, tuple))
    )
    if not counted:
        if name in ("split", "chunk", "tensor_split"):
            _fix_count(recorder, args[0], dim)
        else:
            recorder.relations.pin_sizes()
    return out


@answers("dropout", "alpha_dropout", "feature_dropout", "feature_alpha_dropout", "dropout1d", "dropout2d", "dropout3d")
def _dropout(recorder: Any, function: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    chance = kwargs.get("p", args[1] if len(args) > 1 else None)
    if type(chance) is Float:  # at both ends nothing is drawn; a comparison leaves its outcome as a fact
        chance.__le__(0.0)
        chance.__ge__(1.0)
    return recorder.run(function, name, args, kwargs)


@answers("_set_grad_enabled")
def _grad_mode(recorder: Any, function: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    recorder.guard_gradients()
    return function(*args, **kwargs)


@answers(
    "is_grad_enabled",
    "is_inference_mode_enabled",
    "is_autocast_enabled",
    "get_autocast_dtype",
    "is_autocast_cache_enabled",
)
def _state(recorder: Any, function: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return function(*args, **kwargs)


def _stop(code: str) -> Answer:
    def stop(recorder: Any, function: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        recorder.kill(code, name.removeprefix("get ").removeprefix("set "))
        return function(*args, **kwargs)

    return stop


STOPS = {
    "item": "item _local_scalar_dense tolist __int__ __float__ "
    "__index__ __complex__ equal allclose is_nonzero __contains__ __repr__ "
    "__str__ __format__ is_set_to _nested_tensor_from_mask_left_aligned",
    "branch": "__bool__",
    "numpy": "numpy __array__ __array_wrap__ from_numpy __dlpack__ __dlpack_device__ from_dlpack",
    "autograd": "backward grad register_hook register_post_accumulate_grad_hook retain_grad _make_subclass",
    "tensor-attribute": "data_ptr untyped_storage storage _typed_storage storage_type set_ resize_ resize_as_ "
    "requires_grad_ detach_ share_memory_ "
    "get is_leaf get _version get _grad_fn get output_nr get _base get _cdata get name get retains_grad "
    "get _backward_hooks get volatile "
    "get _post_accumulate_grad_hooks get nbytes _is_view module_load "
    "set data set requires_grad set grad set names set _grad set _backward_hooks set real set imag rename rename_ "
    "refine_names align_to align_as unflatten_names "
    "t_ transpose_ swapaxes_ swapdims_ squeeze_ unsqueeze_ as_strided_ apply_ map_ map2_ __deepcopy__ __reduce_ex__ "
    "__reduce__ __setstate__ __hash__ "
    "sparse_resize_ to_sparse",
    "random-state": "manual_seed seed initial_seed get_rng_state set_rng_state",
    "transform": "vmap jvp vjp",
}  # fmt: skip
# Name of a torch call -> the row of the stops catalogue that says why it is not recorded.
STOPPED = {
    name.replace("get:", "get ").replace("set:", "set "): code
    for code, names in STOPS.items()
    for name in names.replace("get ", "get:").replace("set ", "set:").split()
    if name != "__hash__"
}
ANSWERS |= {_name: _stop(_code) for _name, _code in STOPPED.items()}

RANDOM = frozenset(
    "rand randn randint randperm rand_like randn_like randint_like normal bernoulli multinomial poisson binomial "
    "dropout alpha_dropout "
    "feature_dropout feature_alpha_dropout dropout1d dropout2d dropout3d dropout_ alpha_dropout_ feature_dropout_ "
    "feature_alpha_dropout_ rrelu rrelu_ "
    "bernoulli_ normal_ uniform_ random_ exponential_ geometric_ cauchy_ log_normal_ gumbel_softmax "
    "scaled_dot_product_attention "
    "multi_head_attention_forward native_dropout _sample_dirichlet _standard_gamma rnn_tanh rnn_relu lstm gru "
    "fractional_max_pool2d "
    "fractional_max_pool3d fractional_max_pool2d_with_indices _scaled_dot_product_flash_attention".split()
)


# Calls that set or read the state of a generator: they keep their place among those that draw from it.
GENERATOR_CALLS = frozenset(
    "manual_seed get_rng_state set_rng_state get_state set_state seed_word initial_seed_word".split()
)


# Calls that give no tensor, and are made for what they do or check.
FOR_EFFECT = GENERATOR_CALLS | {"decided"}
# In-place changes of sizes and strides alone.
RESHAPING = frozenset(("t_", "transpose_", "swapaxes_", "swapdims_", "squeeze_", "unsqueeze_"))


def may_be_random(name: str, kwargs: dict[str, Any]) -> bool:
    """Whether a call may advance a generator, so that its state is compared."""
    return name in RANDOM or "generator" in kwargs


IN_PLACE_OPERATORS = frozenset(
    "__setitem__ __iadd__ __isub__ __imul__ __itruediv__ __ifloordiv__ __imod__ __ipow__ __iand__ __ior__ __ixor__ "
    "__ilshift__ __irshift__ __imatmul__ "
    "__idiv__".split()
)


def is_in_place(name: str) -> bool:
    """Whether the name says that the first operand is written."""
    return (name.endswith("_") and not name.endswith("__")) or name in IN_PLACE_OPERATORS


def statistics(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """What is written without counting a version: running statistics by a normalisation in training mode, parameters
    and state by a fused optimizer step.
    """
    if name.startswith("_fused_") and name.endswith("_"):
        lists = [value for place, value in enumerate(args) if place != 1 and isinstance(value, list)]
        return [value for values in lists for value in values if isinstance(value, torch.Tensor)]
    if name in ("batch_norm", "instance_norm", "native_batch_norm", "cudnn_batch_norm"):
        return [
            value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor) and not value.requires_grad
        ][: 5 if _training(name, args, kwargs) else 0][-4:]
    return []


def _training(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    flags = [value for value in (*args, *kwargs.values()) if type(value) is bool]
    return any(flags)


DATA_SIZED = frozenset(
    "nonzero argwhere masked_select unique unique_consecutive _unique2 bincount histogram "
    "unique_dim combinations "
    "boolean_dispatch pack_padded_sequence nms".split()
)


def sizes_from_data(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether sizes of the result may depend on the values of tensors."""
    if name in DATA_SIZED or (name == "where" and len(args) == 1):
        return True
    if name == "repeat_interleave":
        return any(isinstance(value, torch.Tensor) for value in (*args[1:], *kwargs.values()))
    if name == "one_hot":
        return not (len(args) > 1 or "num_classes" in kwargs)
    if name == "__getitem__":
        return _masks(args[1])
    if name in SIZED_BY_NUMBERS:
        return any(_holds_tensor(value) for value in (*args[0 if name in FACTORIES else 1 :], *kwargs.values()))
    return False


def sized_by_numbers(name: str) -> bool:
    """Whether sizes of the result may depend on ints among the arguments."""
    return name in SIZED_BY_NUMBERS or name in CUTTING


FACTORIES = frozenset("zeros ones empty full arange linspace logspace rand randn randint eye range".split())
SIZED_BY_NUMBERS = FACTORIES | frozenset(
    "view reshape expand repeat tile narrow new_zeros new_ones new_empty new_full broadcast_to pad interpolate "
    "unfold".split()
)


TAKING_SIZES = SIZED_BY_NUMBERS | {"as_strided"}
CUTTING = frozenset(
    "__getitem__ narrow split chunk topk unflatten select_scatter repeat_interleave randperm tril_indices triu_indices "
    "one_hot multinomial tensor_split split_with_sizes unsafe_split bincount histc roll resize_ as_strided".split()
)


def _masks(index: Any) -> bool:
    if isinstance(index, torch.Tensor):
        return index.dtype in (torch.bool, torch.uint8)
    if isinstance(index, (tuple, list)):
        return any(_masks(part) for part in index)
    if isinstance(index, slice):
        return any(isinstance(part, torch.Tensor) for part in (index.start, index.stop, index.step))
    return False


def _holds_tensor(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return True
    return isinstance(value, (tuple, list)) and any(_holds_tensor(part) for part in value)


def own_writes(recorder: Any, tensor: torch.Tensor) -> int | None:
    """The version of a tensor that was made in this recording, in memory that no input shares: it is the same in each
    call. None for any other tensor.
    """
    found = recorder.numbers.get(id(tensor))
    if found is None or found in recorder.inputs:
        return None
    with torch._C.DisableTorchFunction():
        memory = tensor.untyped_storage()._cdata
        shared = any(recorder.tensors[number].untyped_storage()._cdata == memory for number in recorder.inputs)
        return None if shared else tensor._version
