"""Side-by-side measurements. Each module is a command that prints a table and can save its result."""
