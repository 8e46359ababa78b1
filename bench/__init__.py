"""Speed of agent-env beside the floor: the same sandboxes, started and called by hand. Run it with ``make bench``."""
