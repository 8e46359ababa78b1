import os

print("printed, not returned")


def run(given):
    lines = sum(1 for _ in open(os.path.join(os.environ.get("REPO", "repo"), "adder.py")))
    return {"lines": lines, "asked": given["args"], "before": sorted(given["results"])}


def broken(given):
    raise RuntimeError("the script is broken")
