"""torch's own database of operators (OpInfo), imported without a trace of the import."""

import warnings

import torch

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from torch.testing._internal.common_methods_invocations import op_db as OPERATORS

# The import freezes the flags of `torch.backends` for the whole process; users' processes may set them, and so may the
# tests that run behind this import.
torch.backends.flags_frozen.__globals__["__allow_nonbracketed_mutation_flag"] = True

__all__ = ["OPERATORS"]
