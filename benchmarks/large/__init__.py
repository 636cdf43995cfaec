"""Measures large tensors: single kernels, the matrix of them, programs of convolutions, what fuse decides by."""
