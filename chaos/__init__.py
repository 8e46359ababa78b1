"""The fault suite: rollouts under faults at moments that a seed decides, and what must hold whatever happens."""
