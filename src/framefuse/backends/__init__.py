"""What runs a captured graph: framefuse's own code generation, eager torch, or a user's compiler."""
