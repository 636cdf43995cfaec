"""Draws random programs and measures them against eager."""
