"""The agent-env command."""
