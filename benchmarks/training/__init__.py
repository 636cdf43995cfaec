"""Measures steps of training: their time, their memory, their first calls."""
