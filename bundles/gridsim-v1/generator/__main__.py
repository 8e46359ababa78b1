"""``python bundles/gridsim-v1/generator`` is ``python bundles/gridsim-v1/generator/generate.py``."""

from generate import main

main()
