"""A third party's plugin for agent-env."""
