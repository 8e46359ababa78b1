"""Playing a task as an episode."""
