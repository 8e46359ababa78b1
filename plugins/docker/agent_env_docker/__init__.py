"""The Docker sandbox provider."""
