"""Measures whether whole libraries of models are captured, right and not slower."""
