"""The checks of the conformance kits, by subject."""

import pytest

_MODULES = ("base", "commands", "files", "images", "life", "network")

# So that a failed check shows its values, as one of a test module does.
pytest.register_assert_rewrite(*(f"{__name__}.{name}" for name in _MODULES))
