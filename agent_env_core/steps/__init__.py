"""The built-in step types, one module each."""
