"""Our own verifier of replies. It runs like those of bundles, apart from the server and with a deadline.

A pattern of a bundle, put to a reply of a model, may take longer than the universe has time (``(a+)+b``), and an
expression that is being matched can't be interrupted in its process.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any


async def verify(mcp_url: str, *, response: str, criteria: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A row for each criterion: its own fields, and what came of it."""
    rows = []
    for number, criterion in enumerate(criteria):
        if criterion["type"] == "response_contains":
            missing = [needle for needle in criterion["needles"] if needle not in response]
            passed, said = not missing, f"not in the reply: {missing}" if missing else "all are in the reply"
        else:
            passed = re.search(criterion["pattern"], response, flags_of(criterion.get("flags"))) is not None
            said = "the pattern is in the reply" if passed else "the pattern isn't in the reply"
        found = {"criterion_index": number, "score": float(passed), "result": passed, "justification": said}
        rows.append({**criterion, **found})
    return rows


def flags_of(names: Sequence[str] | None) -> re.RegexFlag:
    """The flags of those names; without any names, a dot matches line ends.

    Raises:
        ValueError: There is no such flag.
    """
    if names is None:
        return re.DOTALL
    flags = re.RegexFlag(0)
    for name in names:
        if name not in re.RegexFlag.__members__:
            raise ValueError(f"there is no flag {name!r}; there are: {', '.join(re.RegexFlag.__members__)}")
        flags |= re.RegexFlag[name]
    return flags
