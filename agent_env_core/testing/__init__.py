"""Conformance kits and fakes for plugin authors."""
