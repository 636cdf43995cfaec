"""Measures calls as most programs make them: small functions and models, their guards and gradients."""
