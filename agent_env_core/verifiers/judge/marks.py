"""Words that a judge chooses among, and what they count."""

from __future__ import annotations

EVIDENCE = ("visible", "missing", "contradicted", "blocked", "unavailable", "ambiguous", "not_applicable")
"""What the record may show of a criterion."""
NO_EVIDENCE = frozenset({"missing", "contradicted", "blocked", "unavailable"})
"""With these a criterion isn't met, whatever score the judge wrote."""
SHOWN = frozenset({"visible", "not_applicable"})
SEVERITIES = {"low": 0.02, "medium": 0.08, "high": 0.25, "critical": 1.0}
"""What a mistake takes off the score, by how severe it is: the format's own figures."""
