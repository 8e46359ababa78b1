"""One deployed env: its card, its MCP sessions, its data plane, tool access."""
