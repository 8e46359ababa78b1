"""The trainer side: what fits a served bundle to TRL."""
