"""Turns guard programs and plans into native calls: the C sources, and the probe of torch's binary interface."""
