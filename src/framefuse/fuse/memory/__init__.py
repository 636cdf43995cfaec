"""Where the values of a schedule lie: in the inputs' own memory, in that of others, in an arena, in tensors."""
