"""Playing tasks with a model behind an API: which tasks, how a turn is played, what is kept, what it comes to."""
