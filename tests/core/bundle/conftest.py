"""A bundle folder to write into, and the step types its tasks may use."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from agent_env_core.bundle import Bundle, Reference, StepDeclaration, load_bundle
from agent_env_core.errors import BundleError, Problem

DECLARATIONS = {
    declaration.type: declaration
    for declaration in (
        StepDeclaration("deploy_env", (Reference("env_id", "env", pin="env_version"),)),
        StepDeclaration("deploy_agent", (Reference("env_ids", "env", many=True), Reference("a2a_agent_id", "agent"))),
        StepDeclaration("apply_server_config", (Reference("env_id", "env"),)),
        StepDeclaration("prompt_agent", (Reference("snapshot_config.env_id", "env"),)),
        StepDeclaration(
            "env_outcome_verifier",
            (
                Reference("env_id", "env"),
                Reference("file_artifact_id", "artifact", pin="file_artifact_version", artifact_type="file"),
            ),
        ),
        StepDeclaration(
            "load_artifact",
            (
                Reference("artifact_id", "artifact", pin="artifact_version"),
                Reference("artifacts.id", "artifact", "version"),
            ),
        ),
        StepDeclaration(
            "snapshot_env",
            (
                Reference("env_id", "env"),
                Reference("snapshot_id", "artifact", output=True, artifact_type="environment_universe"),
            ),
        ),
        StepDeclaration("add_skills", (Reference("skill_ids", "skill", many=True),)),
        StepDeclaration("wait", check=lambda step: [] if "seconds" in step else ["seconds: is missing"]),
        StepDeclaration("visit", (Reference("sandbox_name", "sandbox"),)),
        StepDeclaration("silent", None),
        StepDeclaration("someday", unsupported="isn't supported here"),
        StepDeclaration("broken_check", check=lambda step: [step["no such field"]]),
    )
}


class BundleFolder:
    """A bundle's folder, empty at first."""

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir()

    def write(self, path: str, content: Any) -> Path:
        """Writes a file: text and bytes as they are, anything else as JSON."""
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        if not isinstance(content, str | bytes):
            content = json.dumps(content)
        file.write_bytes(content.encode() if isinstance(content, str) else content)
        return file

    def fill(self, files: Mapping[str, Any]) -> BundleFolder:
        for path, content in files.items():
            self.write(path, content)
        return self

    def garden(self) -> BundleFolder:
        """A small bundle that is right: an env, a verifier, a task, an eval."""
        return self.fill(
            {
                "envs/garden/Dockerfile": 'FROM python:3.12-slim\nCMD ["python", "server.py"]\n',
                "envs/garden/server.py": '@environment_card(name="garden")\nclass Garden: ...\n',
                "artifacts/garden-judge/verify.py": "async def verify(mcp_url):\n    return []\n",
                "tasks/spring.json": [
                    {"id": "env", "type": "deploy_env", "env_id": "garden"},
                    {"id": "grade", "type": "env_outcome_verifier", "file_artifact_id": "garden-judge"},
                ],
                "evals/smoke.toml": 'tasks = ["spring"]\n',
            }
        )

    def load(self, path: Path | None = None) -> Bundle:
        """The bundle, which has to be sound."""
        bundle = self.read(path)
        assert not bundle.problems
        return bundle

    def read(self, path: Path | None = None) -> Bundle:
        """The bundle, whatever may be wrong with some of its tasks."""
        return load_bundle(path or self.root, DECLARATIONS.get)

    def problems(self) -> list[Problem]:
        """What is wrong; empty where nothing is."""
        try:
            return list(self.read().problems)
        except BundleError as exc:
            return list(exc.problems)


@pytest.fixture
def folder(tmp_path: Path) -> BundleFolder:
    return BundleFolder(tmp_path / "gardenplan")


@pytest.fixture
def garden(folder: BundleFolder) -> BundleFolder:
    return folder.garden()
