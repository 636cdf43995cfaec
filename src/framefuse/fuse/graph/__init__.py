"""Passes that turn a graph of primitives into another one, before anything is put together."""
