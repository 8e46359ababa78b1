"""Sandboxes of Modal."""
