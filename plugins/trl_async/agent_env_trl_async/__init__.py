"""Fits an ``AgentEnv`` to TRL's ``AsyncGRPOTrainer``."""
