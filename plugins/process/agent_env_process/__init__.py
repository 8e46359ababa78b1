"""The plain-process sandbox provider."""
