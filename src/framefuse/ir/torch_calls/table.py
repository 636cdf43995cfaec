"""One row for each torch function of which something is known, by the name under which torch calls it.

``get x`` and ``set x`` are attributes of tensors. ``F.x`` is the function of torch.nn.functional where the operator of
the same name takes other arguments. Functions of which the same is known share a line.
"""

from __future__ import annotations

from framefuse.ir.torch_calls.row import NOTHING, Statistics, TorchCall


class _Table(dict[str, TorchCall]):
    def __missing__(self, name: str) -> TorchCall:
        return NOTHING

    def line(self, row: TorchCall, *names: str) -> None:
        """Adds functions of which the same is known; a second row of one function is refused."""
        for name in names:
            if name in self:
                raise ValueError(f"{name} has a row already")
            self[name] = row

    def names(self, column: str) -> frozenset[str]:
        """The functions whose row says something in this column."""
        place, nothing = TorchCall._fields.index(column), getattr(NOTHING, column)
        return frozenset(name for name, row in self.items() if row[place] != nothing)


TABLE = _Table()
_line, _Row = TABLE.line, TorchCall

# ---- metadata of a tensor, which guards hold -------------------------------------------------------------------------

_line(
    _Row(answer="metadata"),
    "dim", "ndimension", "is_floating_point", "is_complex", "is_signed", "element_size", "get_device", "is_conj",
    "is_neg", "is_inference", "is_shared", "is_pinned", "is_distributed", "is_coalesced", "has_names", "result_type",
    "promote_types", "can_cast", "device", "iinfo", "finfo", "is_vulkan_available",
    "get ndim", "get dtype", "get device", "get layout", "get itemsize", "get names", "get is_cuda", "get is_cpu",
    "get is_meta", "get is_sparse", "get is_sparse_csr", "get is_quantized", "get is_nested", "get is_mkldnn",
    "get is_xpu", "get is_mps", "get is_xla", "get is_mtia", "get is_maia", "get is_vulkan", "get is_ipu", "get is_ort",
    "get is_hpu",
)  # fmt: skip
_line(_Row(answer="metadata", silent=True), "is_tensor", "is_storage", "get_default_device", "get_default_dtype")
_line(_Row(answer="same_size"), "is_same_size")
_line(_Row(answer="sizes"), "size", "get shape")
_line(_Row(answer="elements"), "numel", "nelement")
_line(_Row(answer="bytes"), "get nbytes")
_line(_Row(answer="length"), "__len__")
_line(_Row(answer="strides"), "is_contiguous", "stride")
_line(_Row(answer="offset"), "storage_offset")
_line(_Row(answer="requires_grad"), "get requires_grad")
_line(_Row(answer="grad"), "get grad")
_line(_Row(answer="grad_fn"), "get grad_fn")
_line(_Row(answer="is_leaf"), "get is_leaf")

# ---- how torch stands ------------------------------------------------------------------------------------------------

_line(_Row(answer="state", silent=True), "is_grad_enabled", "is_inference_mode_enabled", "is_autocast_enabled",
      "get_autocast_dtype", "is_autocast_cache_enabled")  # fmt: skip
_line(_Row(answer="grad_mode", silent=True), "_set_grad_enabled")
_line(
    _Row(silent=True),
    "_get_tracing_state", "_log_api_usage_once", "_is_tracing", "_get_privateuse1_backend_name",
    "_is_torch_function_enabled", "_has_torch_function", "_has_torch_function_unary", "_has_torch_function_variadic",
    "_is_autocast_available", "is_autocast_cpu_enabled", "_cuda_isCurrentStreamCapturing", "_cuda_getDeviceCount",
    "is_anomaly_enabled", "_get_nested_int", "_jit_tree_views", "_has_cuda",
    "_cuda_is_available", "_len_torch_function_stack", "_dispatch_has_kernel_for_dispatch_key",
    "_len_torch_dispatch_stack", "peek_interpreter_stack",
    "typename", "_check", "_check_with", "_check_value", "_check_index", "_check_type", "_check_is_size",
    "_check_not_implemented", "_check_tensor_all", "sym_int", "sym_max", "sym_min", "sym_not", "sym_float", "sym_sum",
    "sym_ite", "is_warn_always_enabled", "are_deterministic_algorithms_enabled",
)  # fmt: skip
_line(
    _Row(device_fact=True),
    "is_available", "device_count", "is_built", "is_bf16_supported", "is_tf32_supported", "get_device_name",
    "get_device_capability", "get_device_properties", "get_arch_list", "can_device_access_peer", "current_accelerator",
    "_is_compiled", "is_flash_attention_available",
    "is_current_stream_capturing",  # where it is no question: it raises in builds without the device
)  # fmt: skip

# ---- what ends a recording -------------------------------------------------------------------------------------------

_line(_Row(stop="item", reads_element=True), "item", "_local_scalar_dense")
_line(_Row(stop="item", reads_element=True, kind=int), "__int__")
_line(_Row(stop="item", reads_element=True, kind=float), "__float__")
_line(
    _Row(stop="item"),
    "tolist", "__index__", "__complex__", "equal", "allclose", "is_nonzero", "__contains__", "__repr__", "__str__",
    "__format__", "is_set_to", "_nested_tensor_from_mask_left_aligned",
)  # fmt: skip
_line(_Row(stop="branch"), "__bool__")
_line(_Row(stop="numpy"), "numpy", "__array__", "__array_wrap__", "from_numpy", "__dlpack__", "__dlpack_device__",
      "from_dlpack")  # fmt: skip
_line(_Row(stop="autograd"), "backward", "grad", "register_hook", "register_post_accumulate_grad_hook", "retain_grad",
      "_make_subclass")  # fmt: skip
_line(
    _Row(stop="tensor-attribute"),
    "_typed_storage", "storage_type", "requires_grad_", "detach_", "share_memory_", "_is_view", "module_load",
    "rename_", "align_to", "align_as", "unflatten_names", "apply_", "map_", "map2_", "sparse_resize_", "to_sparse",
    "__deepcopy__", "__reduce_ex__", "__reduce__", "__setstate__",
    "get _version", "get _grad_fn", "get output_nr", "get _base", "get _cdata", "get name",
    "get retains_grad", "get _backward_hooks", "get volatile", "get _post_accumulate_grad_hooks",
    "set data", "set requires_grad", "set grad", "set names", "set _grad", "set _backward_hooks", "set real",
    "set imag",
)  # fmt: skip
_line(_Row(stop="tensor-attribute", lies=True), "data_ptr", "untyped_storage", "storage", "set_", "resize_as_",
      "as_strided_")  # fmt: skip
_line(_Row(stop="tensor-attribute", lies=True, counts=True), "resize_")
_line(_Row(stop="tensor-attribute", gives_back=True), "refine_names")
_line(_Row(stop="tensor-attribute", resizes=True), "t_", "transpose_", "swapaxes_", "swapdims_", "squeeze_",
      "unsqueeze_")  # fmt: skip
_line(_Row(stop="gradient"), "acosh_", "arccosh_", "asinh_", "arcsinh_", "atanh_", "arctanh_")  # torch refuses theirs
_line(_Row(stop="transform"), "vmap", "jvp", "vjp")
# Calls on a generator itself are recorded; of torch's own, those in capture/callables/random_calls.py are too.
_line(_Row(stop="random-state"), "seed", "initial_seed")
_line(_Row(stop="random-state", generator=True), "manual_seed", "get_rng_state", "set_rng_state")
_line(_Row(generator=True), "get_state", "set_state", "seed_word", "initial_seed_word")

# ---- random numbers --------------------------------------------------------------------------------------------------

_line(
    _Row(draws=True),
    "rand_like", "randn_like", "randint_like", "normal", "bernoulli", "poisson", "binomial", "dropout_",
    "alpha_dropout_", "feature_dropout_", "feature_alpha_dropout_", "rrelu", "rrelu_", "bernoulli_", "normal_",
    "uniform_", "random_", "exponential_", "geometric_", "cauchy_", "log_normal_", "gumbel_softmax",
    "multi_head_attention_forward", "native_dropout", "_sample_dirichlet", "_standard_gamma", "rnn_tanh", "rnn_relu",
    "lstm", "gru", "fractional_max_pool2d", "fractional_max_pool3d", "fractional_max_pool2d_with_indices",
    "fractional_max_pool3d_with_indices", "kaiming_uniform_",
    # As torch's compilers and its own kernels call them.
    "uniform", "random", "exponential", "geometric", "cauchy", "log_normal", "normal_functional",
    "rrelu_with_noise", "rrelu_with_noise_", "rrelu_with_noise_functional", "_cudnn_init_dropout_state", "_cudnn_rnn",
    "_fill_mem_eff_dropout_mask_", "_fused_dropout", "_fused_sdp_choice", "_lstm_mps", "miopen_rnn",
    "_nested_tensor_softmax_with_shape", "_flash_attention_forward", "_flash_attention_forward_no_dropout_inplace",
    "_efficient_attention_forward", "_cudnn_attention_forward", "_cudnn_attention_backward",
    "_scaled_dot_product_attention_math", "_scaled_dot_product_attention_math_for_mps",
    "_scaled_dot_product_cudnn_attention", "_scaled_dot_product_cudnn_attention_backward",
    "_scaled_dot_product_efficient_attention", "_scaled_dot_product_efficient_attention_backward",
    "_scaled_dot_product_flash_attention", "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_fused_attention_overrideable", "_triton_scaled_dot_attention",
)  # fmt: skip
_line(_Row(draws=True, answer="dropout", gives_back=True), "dropout", "alpha_dropout", "feature_dropout",
      "feature_alpha_dropout", "dropout1d", "dropout2d", "dropout3d")  # fmt: skip
# In fused attention the heads lie within a row, as in what a projection gives. Gradients that lie in another way are
# copied.
_line(_Row(draws=True, inside=True, gradients=((0, 2, 1, 3),)), "scaled_dot_product_attention")
_line(_Row(alike=True), "_grouped_mm", "grouped_mm")  # of turned weights, as experts of transformers have them
_line(_Row(draws=True, counts=True, sizes=0), "randperm")
_line(_Row(draws=True, counts=True, sizes=1, inside=True), "multinomial")
_line(_Row(draws=True, sizes=0), "rand", "randn", "randint")

# ---- sizes -----------------------------------------------------------------------------------------------------------

_line(_Row(data="values"), "argwhere", "unique_dim", "unique_dim_consecutive", "_unique", "_unique2",
      "torchvision::nms", "_pack_padded_sequence", "_pad_packed_sequence", "_ctc_loss", "linalg_lstsq",
      "nonzero_numpy", "coalesce")  # fmt: skip
_line(_Row(data="values", inside=True), "nonzero", "masked_select", "unique", "unique_consecutive")
_line(_Row(data="values", counts=True, row_major=True, inside=True), "bincount")
_line(_Row(data="alone"), "where")
_line(_Row(data="other_tensors", counts=True), "repeat_interleave")
_line(_Row(data="other_tensors", counts=True, answer="split"), "tensor_split")
_line(_Row(data="classes", counts=True, row_major=True), "one_hot")
_line(_Row(data="mask", counts=True), "__getitem__")
_line(_Row(data="mask"), "index")
_line(_Row(sizes=0), "zeros", "ones", "full", "arange", "linspace", "logspace", "eye", "range",
      "hann_window", "hamming_window", "bartlett_window", "blackman_window", "kaiser_window")  # fmt: skip
_line(_Row(sizes=0, total=True), "empty")
_line(_Row(sizes=1), "expand", "repeat", "tile", "broadcast_to", "pad", "unfold", "combinations", "vander")
_line(_Row(sizes=1, reshapes=True), "reshape")
_line(_Row(sizes=1, reshapes=True, refuses=True), "view")
_line(_Row(sizes=1, no_gradient=True), "new_zeros", "new_ones", "new_full")
_line(_Row(sizes=1, no_gradient=True, total=True), "new_empty")
_line(_Row(sizes=1, counts=True, lies=True), "as_strided")
_line(_Row(sizes=0, counts=True), "tril_indices", "triu_indices")
_line(_Row(sizes=1, inside=True), "interpolate")
_line(_Row(sizes=1, counts=True), "narrow", "unflatten")
_line(_Row(sizes=1, counts=True, inside=True), "histc")
_line(_Row(counts=True), "select_scatter", "roll")
_line(_Row(sizes=1, counts=True, inside=True), "topk")
_line(_Row(sizes=1, counts=True, answer="split"), "split", "chunk")
_line(_Row(counts=True, answer="sections"), "split_with_sizes", "unsafe_split")
_line(_Row(answer="sections"), "hsplit", "vsplit", "dsplit", "unsafe_chunk")
_line(_Row(answer="unbind"), "unbind")
_line(_Row(answer="iteration"), "__iter__")
_line(_Row(answer="new"), "new")

# ---- where results lie -----------------------------------------------------------------------------------------------

_line(
    _Row(gives_back=True),
    "to", "type_as", "long", "int", "short", "char", "byte",
    "bool", "cpu", "cuda", "xpu", "conj", "resolve_conj", "resolve_neg", "positive", "atleast_1d", "atleast_2d",
    "atleast_3d", "pin_memory", "wait_tensor",
    "as_tensor",
    "broadcast_tensors",  # what has the common sizes, which its relations hold
)  # fmt: skip
_line(_Row(gives_back=True, keeps_order=True), "float", "double", "half", "bfloat16")
_line(_Row(gives_back=True, total=True), "contiguous")
_line(_Row(gives_back=True, answer="type"), "type")
_line(_Row(gives_back=True, view=True), "real")
_line(_Row(gives_back=True, stop="tensor-attribute"), "rename")
_line(_Row(view=True, keeps_order=True), "T", "mT")
_line(_Row(view=True), "H", "mH", "imag")
_line(_Row(view=True, no_gradient=True), "data")
_line(_Row(no_gradient=True, keeps_order=True), "detach")
_line(_Row(no_gradient=True), "new_tensor")
_line(_Row(reshapes=True), "reshape_as", "flatten", "ravel")
_line(_Row(reshapes=True, refuses=True), "view_as")
_line(
    _Row(keeps_order=True),
    "t", "transpose", "movedim", "moveaxis", "swapaxes", "swapdims", "zeros_like", "ones_like", "mul", "__mul__",
    "__rmul__", "add", "__add__", "__radd__", "sub", "__sub__", "__rsub__", "rsub", "div", "__truediv__", "neg",
    "__neg__", "abs", "__abs__", "sin", "cos", "exp", "sqrt", "rsqrt", "tanh", "sigmoid", "relu", "gelu", "silu",
    "square",
)  # fmt: skip
_line(_Row(row_major=True), "__rmatmul__", "outer", "cross_entropy", "_int_mm", "_weight_int8pack_mm")
_line(
    _Row(row_major=True, inside=True),
    "linear", "matmul", "__matmul__", "mm", "bmm", "addmm", "baddbmm", "addbmm", "mv", "addmv", "dot",
)  # fmt: skip
_line(_Row(row_major=True, total=True, inside=True), "cumsum", "cumprod")
_line(_Row(row_major=True, total=True), "logcumsumexp", "cummax", "cummin")
_line(_Row(row_major=True, sparse=(4, 6)), "embedding")
_line(_Row(sparse=(7,)), "embedding_bag")
_line(_Row(total=True, keeps_order=True), "clone", "permute", "empty_like")
_line(_Row(total=True), "integer_word", "float_word", "i0", "special_i0e",
      "special_i1", "special_i1e", "special_ndtr", "special_ndtri", "special_entr")  # fmt: skip
_line(_Row(total=True, inside=True), "sort", "argsort", "msort")
_line(_Row(fixed=True), "norm", "linalg_norm", "linalg_vector_norm", "pairwise_distance")  # order 0 has no gradient
_line(_Row(fixed=True), "diff")  # the 0th is a copy
_line(_Row(lies=True), "view_as_real", "view_as_complex", "_unsafe_view")
_line(_Row(lies=True, offset=3), "as_strided_copy")
_line(_Row(lies=True, offset=4), "as_strided_scatter")
_line(
    _Row(inside=True),
    "bilinear", "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d",
    "convolution", "group_norm", "max_pool1d", "max_pool2d", "max_pool3d", "avg_pool1d", "avg_pool2d", "avg_pool3d",
    "searchsorted", "bucketize", "logsumexp", "cdist", "take", "kthvalue", "median", "nanmedian",
    "mode", "quantile", "nanquantile", "isin", "cross", "renorm", "grid_sample", "fold", "adaptive_avg_pool1d",
    "adaptive_avg_pool2d", "adaptive_avg_pool3d", "adaptive_max_pool1d", "adaptive_max_pool2d", "adaptive_max_pool3d",
    "adaptive_max_pool1d_with_indices", "adaptive_max_pool2d_with_indices", "adaptive_max_pool3d_with_indices",
    "gru_cell", "lstm_cell", "rnn_tanh_cell", "rnn_relu_cell",
    # As backward graphs call them.
    "convolution_backward", "avg_pool2d_backward", "avg_pool3d_backward", "_adaptive_avg_pool2d_backward",
    "_adaptive_avg_pool3d_backward", "max_pool2d_with_indices_backward", "max_pool3d_with_indices_backward",
    "adaptive_max_pool2d_backward", "adaptive_max_pool3d_backward",
    "upsample_nearest1d_backward", "upsample_nearest2d_backward", "upsample_nearest3d_backward",
    "upsample_linear1d_backward", "upsample_bilinear2d_backward", "upsample_bicubic2d_backward",
    "upsample_trilinear3d_backward", "embedding_dense_backward",
    "_scaled_dot_product_flash_attention_for_cpu_backward",
)  # fmt: skip

# ---- writes and checks -----------------------------------------------------------------------------------------------

_line(_Row(writes_first=True, repeats=True), "__setitem__")
_line(_Row(repeats=True), "index_copy_", "index_fill_", "index_put_", "put_", "scatter_")
_line(
    _Row(writes_first=True),
    "__iadd__", "__isub__", "__imul__", "__itruediv__", "__ifloordiv__", "__imod__", "__ipow__",
    "__iand__", "__ior__", "__ixor__", "__ilshift__", "__irshift__", "__idiv__",
)  # fmt: skip
_line(_Row(uncounted=True), "copy_uncounted")
_line(_Row(statistics=Statistics(3, 5), inside=True), "batch_norm")
_line(_Row(statistics=Statistics(3, 5)), "native_batch_norm", "_native_batch_norm_legit", "_batch_norm_impl_index",
      "cudnn_batch_norm", "miopen_batch_norm")  # fmt: skip
_line(_Row(statistics=Statistics(3, None)), "_batch_norm_with_update", "batch_norm_gather_stats",
      "batch_norm_gather_stats_with_counts")  # fmt: skip
_line(_Row(statistics=Statistics(1, None)), "batch_norm_update_stats")
_line(_Row(statistics=Statistics(1, 5)), "F.batch_norm")
_line(_Row(statistics=Statistics(3, 5, "use_input_stats", counted=True)), "instance_norm")
_line(_Row(statistics=Statistics(1, 5, "use_input_stats", default=True, counted=True)), "F.instance_norm")
_line(_Row(checks=True), "_assert_async", "_functional_assert_async", "_assert_tensor_metadata", "decided",
      "compared", "within", "_linalg_check_errors")
