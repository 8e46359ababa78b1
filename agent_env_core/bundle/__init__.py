"""A bundle folder on disk, read and checked. Pure: reads files, touches nothing else."""

from agent_env_core.bundle.installed import find_bundle, installed_bundles
from agent_env_core.bundle.model import Agent, Artifact, Bundle, Env, EnvImage, Eval, LeftOut, Skill, Step, Task
from agent_env_core.bundle.reader import load_bundle
from agent_env_core.bundle.references import Reference, StepDeclaration

__all__ = [
    "Agent",
    "Artifact",
    "Bundle",
    "Env",
    "EnvImage",
    "Eval",
    "LeftOut",
    "Reference",
    "Skill",
    "Step",
    "StepDeclaration",
    "Task",
    "find_bundle",
    "installed_bundles",
    "load_bundle",
]
