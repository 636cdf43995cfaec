"""Builds the models that benchmarks, the demo and tests run, with random weights."""
