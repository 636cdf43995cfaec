"""Turns a graph of primitives into its vector-Jacobian products."""
