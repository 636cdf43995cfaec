"""Turns compiled pieces into plans, and keeps the plans of a function with its guards, counters and reasons."""
