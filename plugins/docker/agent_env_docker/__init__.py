"""The Docker sandbox provider of agent-env: one container for each sandbox, on any engine that speaks Docker's API."""
