"""What plugin authors test with: the conformance kit, and fakes with faults on demand.

:mod:`agent_env_core.testing.sandbox` holds the kit for sandbox providers as a class for ``pytest``,
:mod:`agent_env_core.testing.running` runs the same checks without it, and :mod:`agent_env_core.testing.fake` is a
provider that lives in memory.
"""
