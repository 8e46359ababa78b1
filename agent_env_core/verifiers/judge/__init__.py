"""A model that scores a run by criteria in words."""
