"""What callables and operators mean in a recording."""
