"""Measures framefuse beside eager and torch.compile: every figure that the documents state comes from here."""
