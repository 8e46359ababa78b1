"""Bundles that come with agent-env; the entry points in ``agent_env.bundles`` name them."""
