"""The wire client trainers use. Depends on websockets and httpx alone."""
