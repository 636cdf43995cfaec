"""What runs: code, frames and classes of the program, and what a machine that runs them can be asked."""
