#!/bin/sh
# Writes 1 where the hidden tests pass, else 0. Arguments: the app's folder, this one, where to write.
cd "$2" || exit 1
if APP="$1" python -m unittest -q test_hidden; then echo 1.0 >"$3"; else echo 0.0 >"$3"; fi
