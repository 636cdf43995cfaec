"""Torch inside a recording: its calls as numbered values, and what the trace makes again."""
