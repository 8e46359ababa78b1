"""``agent-env train CONFIG.yaml``: one file says what to train on what; everything is checked before a model is loaded.

``document`` reads the file, ``settings`` says what may stand in it, ``setup`` checks it, ``dry_run`` plays one rollout,
``command`` is the command.
"""
