"""The OpenEnv app that serves a bundle."""
