"""What a recording knows of the program's values: where they came from, what guards hold, what was written."""
