"""Decides what runs in the interpreter and what natively, and which native callables a recording may pass."""

from __future__ import annotations

import collections
import inspect
import itertools
import posixpath
import re
import types
import typing
from pathlib import Path

import torch

from framefuse.capture.program.debuggers import hands_over
from framefuse.capture.program.decoded import DECODED_LIMIT
from framefuse.ir.own_class import is_a
from framefuse.ir.torch_calls import TABLE
from framefuse.ir.values import Arguments, Value

# Python functions are classified by the module whose globals they have: functools.wraps copies __module__, never the
# globals.
INTERPRETED_TORCH = (
    "torch.nn.modules", "torch.utils._contextlib", "torch.nn.utils.parametrize", "torch.nn.utils.parametrizations",
    "torch.ao.nn",
    "torch.autograd.grad_mode", "torch.backends", "torch.amp.autocast_mode", "torch.cpu.amp.autocast_mode",
    "torch.cuda.amp.autocast_mode", "torch.optim", "torch.utils._foreach_utils", "torch.nn.parallel.distributed",
    "torch.fx.graph_module", "torch.fx._lazy_graph_module", "torch.export._unlift",
    "torch._export.non_strict_utils", "torch._functorch.functional_call", "torch.nn.utils.stateless",
    "torch.distributed._functional_collectives",
    "torch.nn.utils._named_member_accessor", "torch.distributions",
    "torch.distributed.algorithms._checkpoint.checkpoint_wrapper",
)  # fmt: skip
INTERPRETED_ALONE = ("torch.nn.attention",)  # not what lies below: it sets which kernels attention may choose
NATIVE_MODULES = frozenset(
    "torch numpy logging warnings re inspect importlib typing enum abc posixpath genericpath threading packaging sys "
    "string json weakref _weakrefset io tokenize "
    "linecache traceback random fractions numbers typing_extensions ast dis dataclasses subprocess pathlib tempfile "
    "pickle copyreg time "
    "datetime decimal statistics shutil socket ssl unittest pytest _pytest pluggy asyncio concurrent "
    "multiprocessing ctypes site zipimport "
    "framefuse reprlib textwrap locale codecs encodings sre_compile sre_parse uuid platform signal tqdm rich".split()
)
# The demo stands in for a user's program.
INTERPRETED_OURS = (
    "framefuse.capture.program.equivalents",
    "framefuse.capture.program.itertools_equivalents",
    "framefuse.capture.program.method_equivalents",
    "framefuse.capture.program.special_methods",
    "framefuse.capture.callables.custom_functions",
    "framefuse.capture.callables.flexible_attention",
    "framefuse.capture.callables.mapped_functions",
    "framefuse.capture.callables.operator_traces",
    "framefuse.capture.callables.scans",
    "framefuse.capture.callables.control_flow",
    "framefuse.aot.forms.",
    "framefuse.capture.callables.transforms",
    "framefuse.capture.callables.data_parallel",
    "framefuse.capture.callables.parallel_layers",
    "framefuse.ir.collectives",
    "framefuse.capture.recording.functional_collectives",
    "framefuse.demo",
)
# Functions of torch's trees that call one which they are given, and the method through which they do.
CALLING_BACK = (
    "tree_map tree_map_ map_only tree_map_only tree_map_only_ tree_iter tree_all tree_any tree_all_only tree_any_only "
    "tree_is_leaf unflatten".split()
)
# What nn.MultiheadAttention calls: as one call its products, softmax and copies would stay apart from what is around.
ATTENTION = ("multi_head_attention_forward", "_in_projection_packed", "_in_projection")
# Compositions of torch.nn.functional of which kernels are made as of what they call, be it a function of the user's.
COMPOSED = ("lp_pool1d", "lp_pool2d", "lp_pool3d", "triplet_margin_with_distance_loss")
# What makes and cuts the masks of flex_attention, and what calls the masks that it was given.
MASKS = (
    "create_block_mask and_masks or_masks noop_mask BlockMask _get_mod_type _convert_mask_to_block_mask "
    "_create_sparse_block_from_block_mask _broadcast_to_dim _round_up_to_multiple _transpose_ordered "
    "_adjust_num_blocks_and_indices".split()
)
# Functions of native modules that read the user's objects, or only call others.
INTERPRETED_FUNCTIONS = frozenset(
    ("dataclasses", name)
    for name in "asdict astuple replace _replace _asdict_inner _astuple_inner _is_dataclass_instance".split()
) | {("torch.random", "fork_rng"), ("torch.autograd.function", "__init__")} | {
    ("torch.utils.hooks", name) for name in ("remove", "__enter__", "__exit__")
} | {
    *(("torch.utils._pytree", name) for name in CALLING_BACK),
    ("torch.backends", "ContextProp"),
    ("torch.utils.checkpoint", "checkpoint_sequential"),
    *(("torch.nn.attention.flex_attention", name) for name in MASKS),
    *(("torch.nn.functional", name) for name in (*ATTENTION, *COMPOSED)),
    ("torch.backends.cuda", "cuBLASModule"),
    ("torch", "_assert"),
    *(("torch.backends.cuda", f"{name}_sdp_enabled") for name in ("flash", "math", "mem_efficient", "cudnn")),
}
# Functions of interpreted modules that set many flags of a backend: one step each.
NATIVE_FUNCTIONS = frozenset(
    (f"torch.backends.{backend}", "set_flags") for backend in ("cudnn", "mkldnn", "miopen", "opt_einsum", "nnpack")
) | {("torch.distributed._functional_collectives", "_maybe_wrap_tensor")}
# Torch's Python functions outside these modules are opaque.
TORCH_SILENT = (
    "torch.functional", "torch.nn.functional", "torch._tensor", "torch.overrides", "torch._jit_internal",
    "torch.jit", "torch.compiler",
    "torch.autograd.grad_mode", "torch.utils._contextlib", "torch.nn.", "torch._utils", "torch._VF", "torch.types",
    "torch._ops", "torch.special",
    "torch.linalg", "torch.fft", "torch._lowrank", "torch._linalg_utils", "torch.utils._python_dispatch",
    "torch.utils._pytree", "torch.nn.parameter", "torch._C", "torch.return_types", "torch.onnx", "torch._tensor_str",
    "torch.library", "torch.utils.hooks", "torch.torch_version",
    "torch._namedtensor_internals",
    "torch.fx._symbolic_trace", "torch.fx._pytree", "torch.export._tree_utils", "torch.version", "torch._refs",
    "torch.cuda.amp", "torch.cuda.nvtx", "torch.cuda._utils", "torch.xpu._utils",
    "torch._prims_common",
    "torch._dynamo.mutation_guard",  # once torch.compile was used, it stands before the constructor of every module
)  # fmt: skip
# How the names of functions begin that change what later code finds, how tensors print and what a tree is, and the
# modules above in which they lie.
SETTING = ("set_", "register_pytree_node", "_register_pytree_node", "printoptions")
SET_IN = ("torch._tensor_str", "torch.utils._pytree")
# Modules whose functions call nothing that they are given.
HOLDING = frozenset(("torch._dynamo.mutation_guard",))
# Of torch.cuda and its kin: what a process finds out about its devices once. The rest changes the state of a device
# (streams, memory), or tells it.
ACCELERATORS = ("torch.cuda", "torch.xpu", "torch.mps", "torch.accelerator", "torch.mtia", "torch.backends")
TORCH_STOPS = (
    ("torch.autograd.function", "custom-function"),
    ("torch.autograd.profiler", "native-call"),
    ("torch.autograd", "autograd"),
    ("torch.utils.checkpoint", "transform"),
    ("torch._functorch", "transform"),
    ("torch.func", "transform"),
    ("torch.amp.grad_scaler", "native-call"),
    ("torch.amp", "autocast"),
    ("torch.random", "random-state"),
    ("torch.cuda.random", "random-state"),
)

# Torch's Python code of function transforms, but for what records graphs of its own.
TRANSFORMS = ("torch._functorch.apis", "torch._functorch.vmap", "torch._functorch.eager_transforms")
NO_TRANSFORMS = frozenset(("linearize", "functionalize"))

# Folders of libraries.
INSTALLED = frozenset(("site-packages", "dist-packages"))

# By id, with the code object: to hash one takes as long as all that is asked here.
_native_code: dict[int, tuple[types.CodeType, bool]] = {}


def runs_natively(function: types.FunctionType) -> bool:
    """True for Python functions that are called as they are: torch's own and much of the standard library."""
    code = function.__code__
    known = _native_code.get(id(code))
    if known is not None:
        return known[1]
    module = function.__globals__.get("__name__", "") or ""
    top = module.partition(".")[0]
    if top == "torch":
        interpreted = module.startswith(INTERPRETED_TORCH) or module in INTERPRETED_ALONE
        outer = code.co_qualname.partition(".")[0]
        interpreted = interpreted or not INTERPRETED_FUNCTIONS.isdisjoint(
            ((module, outer), (module, function.__name__))
        )
        interpreted = interpreted and (module, function.__name__) not in NATIVE_FUNCTIONS
        native = not interpreted and (not _wraps_foreign(function) or _of_torch_compile(function))
    elif module.startswith(INTERPRETED_OURS):
        native = False
    else:
        outermost = function.__qualname__.partition(".")[0]  # a generator expression belongs to its function
        native = top in NATIVE_MODULES and (module, outermost) not in INTERPRETED_FUNCTIONS
        native = native and not hasattr(function, "__deprecated__")  # it warns, and calls what it stands for
    native = native or hands_over(code)
    if not code.co_freevars:
        if len(_native_code) > DECODED_LIMIT:
            _native_code.clear()  # it holds code objects
        _native_code[id(code)] = (code, native)
    return native


def is_transform(function: types.FunctionType) -> bool:
    """Whether this is a function transform of torch, or what one made of a function."""
    home = function.__globals__.get("__name__")
    if home == "framefuse.capture.callables.flexible_attention":
        return function.__name__ in ("scores_of", "mask_of")
    return home in TRANSFORMS and function.__code__.co_qualname.partition(".")[0] not in NO_TRANSFORMS


def is_installed(code: types.CodeType) -> bool:
    """Whether a code object is that of an installed library, as opposed to the user's own program."""
    return library_of(code) is not None


def library_of(code: types.CodeType) -> str | None:
    """The installed library to which a code object belongs; None for the user's own program."""
    parts = Path(code.co_filename).parts
    return next((name for folder, name in itertools.pairwise(parts) if folder in INSTALLED), None)


def _wraps_foreign(function: types.FunctionType) -> bool:
    """Whether a function of torch closes over a function that is not torch's: a decorator around the user's code."""
    for cell in function.__closure__ or ():
        try:
            value = cell.cell_contents
        except ValueError:
            continue
        if is_a(value, types.FunctionType) and not _is_torchs(value.__globals__.get("__name__", "")):
            return True
    return False


def _of_torch_compile(function: types.FunctionType) -> bool:
    """Whether this is what torch.compile made of a function, whose own compiler shall see that run, not the recorder;
    or what ``torch.compiler.disable`` made of one, which the user keeps from compilers.
    """
    return "_torchdynamo_orig_callable" in vars(function)


def is_disabled(function: types.FunctionType) -> bool:
    """Whether the user keeps this function from the compiler: by a mark, or since torch.compile has compiled it."""
    return _of_torch_compile(function) or "__framefuse_disabled__" in vars(function)


def _is_torchs(module: str) -> bool:
    return module.startswith("torch") or module == "typing_extensions"  # what marks a function as deprecated


PURE_MODULES = frozenset(
    "inspect typing enum abc dataclasses re numbers string posixpath packaging typing_extensions packaging.version "
    "_collections_abc _abc _struct fractions re._compiler re._parser".split()
)
# Of these, the functions that read what no fact holds: files, the folder of the process, its environment, annotations.
READING_ELSEWHERE: frozenset[Value] = frozenset((
    posixpath.abspath, posixpath.realpath, posixpath.relpath, posixpath.expanduser, posixpath.expandvars,
    posixpath.islink, posixpath.ismount, posixpath.lexists, typing.get_type_hints, inspect.get_annotations,
))  # fmt: skip
# Of these, those whose functions look into the arguments that they are given.
LOOKING_INSIDE = frozenset(("dataclasses", "inspect", "string", "numbers", "fractions", "json", "re"))
PURE_TYPES = (
    str, bytes, int, float, complex, bool, tuple, frozenset, range, slice, type(None), type, torch.Size, torch.dtype,
    torch.device, torch.finfo,
    torch.iinfo, types.MappingProxyType, inspect.Signature, types.CodeType, types.FunctionType, property,
    types.GenericAlias, re.Pattern, re.Match,
)  # fmt: skip
MUTABLE_TYPES = (list, dict, set, collections.deque, bytearray)
ITERATOR_TYPES: tuple[type, ...] = (
    type(iter([])), type(iter(())), type(iter(range(0))), type(iter({})), type(iter({}.items())),
    type(iter({}.values())), type(iter("")),
    type(reversed([])), type(iter(set())), enumerate, zip, map, filter, itertools.chain, itertools.islice,
    itertools.count, itertools.cycle,
    itertools.repeat, itertools.product, itertools.starmap, itertools.accumulate, itertools.zip_longest,
    type({}.keys()), type({}.values()),
    type({}.items()), type(reversed({})), type(reversed(())), type(iter(collections.OrderedDict())),
)  # fmt: skip
# A bound method of C that is told its class has a type of its own, that of ``re.compile("").match``.
NATIVE_KINDS = (
    types.BuiltinFunctionType, type(re.compile("").match), types.MethodDescriptorType, types.WrapperDescriptorType,
    types.MethodWrapperType, types.ClassMethodDescriptorType,
)  # fmt: skip


def _operators() -> set[Value]:
    """Torch's C operators; what the mode is not told of (``from_numpy``) is seen by its tensors of unknown origin."""
    spaces = [getattr(torch._C, name) for name in ("_nn", "_linalg", "_fft", "_special", "_nested", "_sparse")]
    operators = {getattr(torch, name, None) for name in dir(torch._C._VariableFunctions) if not name.startswith("__")}
    for space in spaces:
        operators |= {value for value in vars(space).values() if type(value) is types.BuiltinFunctionType}
    return {value for value in operators if type(value) is types.BuiltinFunctionType}


OPERATORS = _operators()


def is_wrapper(function: types.FunctionType) -> bool:
    """Whether a function is what torch puts around one of its own that torch.compile shall not look into: where it is
    defined, or in the place of an optimizer's methods once torch.compile was used in the process."""
    home = function.__globals__.get("__name__")
    if home not in ("torch._compile", "torch._dynamo.eval_frame") or function.__name__ == "_disable_dynamo":
        return False
    inner = getattr(function, "__wrapped__", None)
    if inner is torch.random.manual_seed:
        return True
    if not is_a(inner, types.FunctionType) or runs_natively(inner):
        return False
    return home == "torch._compile" or (
        getattr(function, "_torchdynamo_disable", False)
        and str(inner.__globals__.get("__name__")).startswith("torch.optim.")  # a user's own mark is kept
    )


# What a mode's own code does is run by torch's C: a call recorded below it would be replayed without that.
ENTERS_MODES = frozenset(
    "TorchFunctionMode.__enter__ TorchFunctionMode.__exit__ BaseTorchFunctionMode.__enter__ _push_mode _pop_mode "
    "_pop_mode_temporarily _temporarily_pop_modes_from_mode_stack TorchDispatchMode.__enter__ "
    "TorchDispatchMode.__exit__ _disable_current_modes "
    "_enable_torch_function enable_reentrant_dispatch DeviceContext.__enter__ DeviceContext.__exit__ "
    "inference_mode.__enter__ inference_mode.__exit__".split()
)
FOR_TORCH_COMPILE = ("graph_break", "DynamoConfigPatchProxy.")


def torch_function_stop(function: types.FunctionType) -> str | None:
    """The code of the stop for one of torch's Python functions, None when it may run inside a recording."""
    inner = getattr(function, "__wrapped__", None)
    if is_a(inner, types.FunctionType) and function.__globals__.get("__name__") == "torch._compile":
        return torch_function_stop(inner)
    module = function.__globals__.get("__name__", "")
    if module == "torch._dynamo.decorators" and function.__qualname__.startswith(FOR_TORCH_COMPILE):
        return None  # a mark for another compiler; torch's optimizers have some, and exported modules
    for prefix, code in TORCH_STOPS:
        if module == prefix or (module.startswith(prefix + ".") and not module.startswith("torch.autograd.grad_mode")):
            return code
    if function.__qualname__ in ENTERS_MODES:
        return "native-call"
    if module == "torch.jit._trace":  # they call what they are given, and look at who calls what inside
        return None if function.__name__ in ("is_tracing", "_script_if_tracing") else "native-call"
    if module == "torch":
        return None if TABLE[function.__name__].silent else "native-call"
    if TABLE[function.__name__].device_fact and module.startswith(ACCELERATORS):
        return None
    if function.__name__.startswith(SETTING) and module in SET_IN:
        return "native-call"
    return None if module.startswith(TORCH_SILENT) else "native-call"


# Classes of torch that only hold what they are given; what is done with them is looked at there.
HOLDING_CLASSES = frozenset((torch.autograd.profiler.record_function,))
SILENT_CLASSES = HOLDING_CLASSES | {torch.autocast}


def is_index_mode(cls: type) -> bool:
    """Whether a class is torch's mode for tensors as indices, which lies in a module that is not to be imported."""
    return cls.__qualname__ == "TransformGetItemToIndex" and cls.__module__.startswith("torch._dynamo.")


def class_stop(cls: type) -> str | None:
    """The code of the stop for one of torch's classes, None for any other class."""
    if cls is torch.nn.Parameter:  # a leaf of its own, which no call of torch gives
        return "unknown-tensor"
    if cls in SILENT_CLASSES or is_index_mode(cls):
        return None
    module = getattr(cls, "__module__", "") or ""
    return (
        next((code for prefix, code in TORCH_STOPS if module == prefix or module.startswith(prefix + ".")), None)
        if (module.startswith("torch.") and not module.startswith("torch.autograd.grad_mode"))
        else None
    )


def is_torch_native(function: Value) -> bool:
    """Whether a C callable is one of torch's operators or silent queries."""
    owner = getattr(function, "__objclass__", None)
    if owner is not None:
        return issubclass(owner, torch._C.TensorBase)
    holder = getattr(function, "__self__", None)
    if is_a(holder, torch.Tensor):
        return True
    if is_a(holder, torch.Size):
        return False
    if function in OPERATORS:
        return True
    name, module = getattr(function, "__name__", ""), getattr(function, "__module__", None)
    return TABLE[name].silent and (
        module is None or module.startswith("torch") or is_a(holder, types.ModuleType)
    )


def title(function: Value) -> str:
    """How a callable is named to the user."""
    if is_a(function, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)):
        return f"torch.ops.{function}"
    named = getattr(function, "__qualname__", None) or getattr(function, "__name__", None)
    name = str(named or type(function).__name__)
    if name.startswith("pybind11_detail_function_record"):  # what pybind names a method of an object by
        name = name.rpartition(".")[2]
    module = getattr(function, "__module__", None)
    return f"{module}.{name}" if module and module != "builtins" else name


def refers_weakly(target: type | types.FunctionType) -> bool:
    """Whether a class, or a function of one, is Python's for containers that let go of what they have as it ends."""
    return target.__module__ in ("weakref", "_weakrefset")


def is_class_of_torch(target: Value) -> bool:
    """Whether a class of torch is called: what it warns when it is made, it puts down to its caller."""
    return is_a(target, type) and target.__module__.startswith("torch.")


def warns_above(target: Value, args: Arguments) -> bool:
    """Whether a call may warn in its caller's name, in which a later call has none of the program's frames: C code of
    numpy, which warns of values, the gradient of what is no leaf, and classes of torch.
    """
    if target is getattr:
        return is_a(args[0], torch.Tensor) and args[1] == "grad"
    if type(target) not in NATIVE_KINDS:
        return type(target).__module__ == "numpy" or is_class_of_torch(target)
    owner = getattr(target, "__objclass__", target)
    return owner.__module__ == "numpy" or any(type(part).__module__ == "numpy" for part in args)
