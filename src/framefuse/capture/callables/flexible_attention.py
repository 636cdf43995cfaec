"""``flex_attention`` with functions of the user, in terms of which its scores and masks are part of the graph."""

from __future__ import annotations

import math
import types

import torch

from framefuse.capture.interp.registry import NAMED_EQUIVALENTS
from framefuse.capture.recording.tensors import stands_for_another
from framefuse.ir.classes import PLAIN_TENSORS
from framefuse.ir.values import Arguments, Function, Keywords, Value

PLACE = ("torch.nn.attention.flex_attention", "flex_attention")
NAMES = ("query", "key", "value", "score_mod", "block_mask", "scale", "enable_gqa", "return_lse")
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
DEPRECATED = (
    "return_lse is deprecated and will be removed in v2.10. Please use return_aux=AuxRequest(lse=True) instead."
)
REFUSED = "_sliced_mask_mod_error"  # the mask of a part of a mask, which raises
# Each function is called with numbers of batch, head, query and key: of one dimension at a time, the last first.
NUMBERS = ((None, None, None, 0), (None, None, 0, None), (None, 0, None, None), (0, None, None, None))


def flex_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    score_mod: Value = None,
    block_mask: Value = None,
    scale: Value = None,
    enable_gqa: bool = False,
    return_lse: bool = False,
    kernel_options: Value = None,
    *,
    return_aux: Value = None,
) -> Value:
    """What torch's function gives; the program's functions run in frames."""
    if query.requires_grad or key.requires_grad or value.requires_grad:
        assert query.device.type != "cpu", "torch refuses it"  # not reached: the call was looked at
    mask_mod = _everything
    if block_mask is not None:
        mask_mod = block_mask.mask_mod
        if tuple(block_mask.seq_lengths) != (query.shape[2], key.shape[2]):
            raise ValueError("block_mask was created for other lengths")  # not reached: the call was looked at
    if scale is None:
        scale = 1.0 / math.sqrt(query.shape[3])
    scores = scores_of(query, key, _same if score_mod is None else score_mod, mask_mod, scale)
    result = attend(scores, value, query.size(1) // key.size(1)).to(query.dtype)
    if return_lse:
        torch.nn.attention.flex_attention._warn_once("deprecated_return_lse", DEPRECATED, category=FutureWarning)
        return result, sums_of(scores)
    if return_aux is None:
        return result
    sums = sums_of(scores) if return_aux.lse else None
    return result, torch.nn.attention.flex_attention.AuxOutput(sums)


def _same(score: torch.Tensor, *place: torch.Tensor) -> torch.Tensor:
    return score


def _everything(batch: torch.Tensor, *place: torch.Tensor) -> torch.Tensor:
    return torch.ones_like(batch, dtype=torch.bool)


def scores_of(
    query: torch.Tensor, key: torch.Tensor, score_mod: Function, mask_mod: Function, scale: float
) -> torch.Tensor:
    """Scores by torch's formula, with the functions over all places; runs as a function transform."""
    key = torch.repeat_interleave(key, query.size(1) // key.size(1), dim=1)
    wide = torch.float64 if query.dtype is torch.float64 else torch.float32
    scores = query.to(wide) @ key.to(wide).transpose(-2, -1)
    places = [torch.arange(0, size, device=scores.device) for size in scores.shape]
    score, mask = score_mod, mask_mod
    for dims in NUMBERS:
        score = torch.vmap(score, in_dims=(0, *dims), out_dims=0)
        mask = torch.vmap(mask, in_dims=dims, out_dims=0)
    scores = (scores * scale).to(wide)
    lowest = torch.full((), -math.inf, dtype=wide, device=scores.device)
    return torch.where(mask(*places), score(scores, *places), lowest)


def create_mask(
    mod_fn: Function, B: int | None, H: int | None, Q_LEN: int, KV_LEN: int, device: Value = None
) -> torch.Tensor:
    """What torch's function gives: where a mask, or a score that starts from zero, lets a query see a key."""
    sizes = (1 if B is None else B, 1 if H is None else H, Q_LEN, KV_LEN)
    return mask_of(mod_fn, sizes, device, mod_fn.__code__.co_argcount == len(NUMBERS) + 1)


def mask_of(mask_mod: Function, sizes: tuple[int, ...], device: Value, scores: bool) -> torch.Tensor:
    """The function over all places; runs as a function transform."""
    places = [torch.arange(0, size, device=device) for size in sizes]
    mask = mask_mod
    for dims in NUMBERS:
        mask = torch.vmap(mask, in_dims=(0, *dims) if scores else dims, out_dims=0)
    allowed: torch.Tensor = (
        ~torch.isneginf(mask(torch.zeros(sizes, device=device), *places)) if scores else mask(*places)
    )
    return allowed


def dense_to_ordered(dense_mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """How many blocks each row of blocks has, and which, those first."""
    dense = dense_mask.to(torch.int32)
    columns = torch.argsort(dense, dim=-1, descending=True, stable=True)
    plain = torch.contiguous_format
    return dense.sum(dim=-1).to(torch.int32, memory_format=plain), columns.to(torch.int32, memory_format=plain)


def ordered_to_dense(
    num_blocks_in_row: torch.Tensor, col_indices: torch.Tensor, num_cols: int | None = None
) -> torch.Tensor:
    """Ones where rows of blocks have a block, found by comparing, which goes where nobody reads it: a write at
    positions is kept, since it may raise. Before torch 2.12 columns are as many as indices.
    """
    num_cols = col_indices.shape[-1] if num_cols is None else num_cols
    there = torch.arange(col_indices.shape[-1], device=col_indices.device) < num_blocks_in_row.unsqueeze(-1)
    columns = torch.arange(num_cols, device=col_indices.device)
    return ((col_indices.unsqueeze(-1) == columns) & there.unsqueeze(-1)).any(-2).to(torch.int32)


def attend(scores: torch.Tensor, value: torch.Tensor, groups: int) -> torch.Tensor:
    """The values weighed by the scores."""
    value = torch.repeat_interleave(value, groups, dim=1)
    return torch._safe_softmax(scores, dim=-1).to(value.dtype) @ value


def sums_of(scores: torch.Tensor) -> torch.Tensor:
    """Logarithms of the sums of a row's weights, which torch makes logarithms of base two in between."""
    nothing = torch.all(scores == -math.inf, dim=-1)
    return torch.where(nothing, -math.inf, torch.logsumexp(scores, -1)) / math.log(2) * math.log(2.0)


def is_plain(args: Arguments, kwargs: Keywords) -> bool:
    """Whether a call has the form above and is none that torch refuses."""
    given = dict(zip(NAMES, args, strict=False)) | kwargs
    query, key, value = tensors = [given.get(name) for name in NAMES[:3]]
    if len(args) > len(NAMES) or any(type(tensor) not in PLAIN_TENSORS for tensor in tensors):
        return False
    aux, sums = given.get("return_aux"), bool(given.get("return_lse"))
    if given.get("kernel_options") or (sums and aux is not None) or (aux is not None and aux.max_scores):
        return False
    if (sums or aux is not None) and any(map(_trains, tensors)):
        return False
    with torch._C.DisableTorchFunction():
        return _fits(query, key, value, bool(given.get("enable_gqa")), given.get("block_mask"))


def _trains(tensor: Value) -> bool:
    return isinstance(tensor, torch.Tensor) and tensor.requires_grad


def _fits(query: Value, key: Value, value: Value, grouped: bool, block_mask: Value) -> bool:
    """Whether sizes, dtypes and the mask belong together."""
    tensors = (query, key, value)
    if any(stands_for_another(tensor) or tensor.ndim != 4 or 0 in tensor.shape for tensor in tensors):
        return False
    if any(tensor.dtype is not query.dtype or tensor.device != query.device for tensor in tensors):
        return False
    if query.device.type not in ("cpu", "cuda"):
        return False
    if query.device.type == "cpu" and any(tensor.requires_grad for tensor in tensors):
        return False
    heads = query.shape[1] % key.shape[1] == 0 if grouped else query.shape[1] == key.shape[1]
    rows = key.shape[:3] == value.shape[:3] and query.shape[0] == key.shape[0]
    if not heads or not rows or query.shape[3] != key.shape[3] or query.dtype not in DTYPES:
        return False
    if block_mask is None:
        return True
    named = (type(block_mask).__module__, type(block_mask).__name__) == (PLACE[0], "BlockMask")
    if not named or block_mask.kv_num_blocks.device != query.device:
        return False
    if getattr(block_mask.mask_mod, "__name__", "") == REFUSED:
        return False
    return tuple(block_mask.seq_lengths) == (query.shape[2], key.shape[2])


def is_of_places(args: Arguments, kwargs: Keywords) -> bool:
    """Whether a call of ``create_mask`` has a function of Python without defaults, on a device that it names."""
    function = args[0] if args else kwargs.get("mod_fn")
    device = args[5] if len(args) > 5 else kwargs.get("device")
    if type(function) is not types.FunctionType or device is None:
        return False
    code, places = function.__code__, len(NUMBERS)
    plain = not function.__defaults__ and not code.co_kwonlyargcount
    return plain and code.co_argcount in (places, places + 1)


NAMED_EQUIVALENTS[PLACE] = (is_plain, flex_attention)
NAMED_EQUIVALENTS[PLACE[0], "create_mask"] = (is_of_places, create_mask)
NAMED_EQUIVALENTS[PLACE[0], "_dense_to_ordered"] = (lambda args, kwargs: True, dense_to_ordered)
NAMED_EQUIVALENTS[PLACE[0], "_ordered_to_dense"] = (lambda args, kwargs: True, ordered_to_dense)
