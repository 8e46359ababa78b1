"""The main job from end to end: warm-start a tiny model on GridSim's best schedules, then train it with TRL's GRPO.

Run it from the root of the repository with ``python -m examples.train_gridsim`` (``make demo`` does). It is written to
be read and taken apart: each module is one stage, and ``__main__`` puts them in order.
"""
