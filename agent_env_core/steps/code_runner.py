"""Runs a script's function inside a sandbox. Sent there as it is: the standard library only, and Python 3.9 is enough.

Reads one JSON object from its input: ``script`` (a path), ``entrypoint``, ``argument``, ``port_variable`` and
``mcp_path``. Writes the function's answer as JSON to its output; whatever the script prints goes to its error output.
"""

import importlib.util
import json
import os
import sys


def main() -> None:
    """Does the work."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    asked = json.load(sys.stdin)
    argument = asked["argument"]
    if "env" in argument:
        url = "http://127.0.0.1:" + os.environ.get(asked["port_variable"], "18765")
        argument["env"].update(url=url, mcp_url=url + asked["mcp_path"])
    sys.path.insert(0, os.path.dirname(asked["script"]))
    spec = importlib.util.spec_from_file_location("agent_env_script", asked["script"])
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    function = getattr(module, asked["entrypoint"], None)
    if not callable(function):
        sys.exit("the script has no function " + repr(asked["entrypoint"]))
    json.dump(function(argument), answers)
    answers.flush()


main()
