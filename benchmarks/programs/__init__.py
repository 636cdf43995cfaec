"""Programs written by hand as users write them, on three levels: single operators, short chains, and whole nets."""
