"""Train a model on a bundle's tasks with TRL.

>>> from agent_env.training.trl import AgentEnv
>>> env = AgentEnv.local("bundles/gridsim-v1", split="train")
>>> trainer = GRPOTrainer(..., train_dataset=env.dataset, environment_factory=env.factory)
"""

from agent_env_trl.agent_env import AgentEnv

__all__ = ["AgentEnv"]
