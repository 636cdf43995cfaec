"""Says whose GPUs this torch is built for; the processes that compile kernels have no torch and are told."""

from __future__ import annotations

import torch

NVIDIA = torch.version.cuda is not None
