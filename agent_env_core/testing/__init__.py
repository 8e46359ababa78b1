"""What plugin authors test with: conformance kits, and fakes with faults on demand.

:mod:`agent_env_core.testing.sandbox` holds the kit for sandbox providers (it needs ``pytest`` and ``pytest-asyncio``),
:mod:`agent_env_core.testing.fake` a provider that lives in memory.
"""
