"""The E2B sandbox provider of agent-env: one micro-VM of E2B's cloud for each sandbox."""
