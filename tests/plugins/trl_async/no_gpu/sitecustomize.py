"""Puts the stand-ins for a GPU in place before ``agent-env train`` runs: Python imports this when it starts."""

import sys

if "train" in sys.orig_argv:  # not in the server, nor in the rollout process
    from stand_ins import install

    install()
