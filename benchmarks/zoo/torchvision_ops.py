"""Lets torchvision import beside a torch it was not built for, by declaring the compiled operators that it looks up."""

import importlib.util
from pathlib import Path

import torch

# What torchvision's Python files look up at import; the zoo never calls them.
OPERATORS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)

# A library object takes its declarations along when it dies.
_declared: list[torch.library.Library] = []


def declare_torchvision_operators() -> None:
    """Declares torchvision::nms and torchvision::qnms unless torchvision's own library loads and brings them.

    The wheel of torchvision on the package index is built for torch with CUDA; beside a CPU torch its library does
    not load, and `import torchvision` (which timm and transformers do as well) ends with "operator torchvision::nms
    does not exist". Call this before importing any of the three.
    """
    spec = importlib.util.find_spec("torchvision")
    if _declared or spec is None or spec.origin is None or hasattr(torch.ops.torchvision, "nms"):
        return
    for library in Path(spec.origin).parent.glob("_C*.so"):
        try:
            torch.ops.load_library(library)
            return
        except OSError:  # built for another torch
            continue
    own = torch.library.Library("torchvision", "FRAGMENT")
    for schema in OPERATORS:
        own.define(schema)
    _declared.append(own)
