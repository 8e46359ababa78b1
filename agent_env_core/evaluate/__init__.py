"""Playing tasks with a model behind an API: retries, results on disk, statistics."""
