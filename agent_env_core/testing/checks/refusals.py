"""Checks that what isn't claimed is refused before anything exists."""

from __future__ import annotations

from agent_env_core.errors import ImageError, Unsupported
from agent_env_core.testing.checks.base import PORT, Skipped, Subject, Trial

SUBJECT = Subject("refusals")


@SUBJECT.check(boxes=4)
async def a_ttl_must_be_finite_and_positive(trial: Trial) -> None:
    for ttl in (0, -1, float("inf"), float("nan")):
        await trial.refuses(Unsupported, says="ttl", ttl=ttl)


@SUBJECT.check()
async def a_ttl_past_the_longest_is_refused(trial: Trial) -> None:
    if trial.can.max_ttl is None:
        raise Skipped("the provider has no longest TTL")
    await trial.refuses(Unsupported, says="ttl", ttl=trial.can.max_ttl + 1)


@SUBJECT.check()
async def an_allow_list_is_refused_where_it_is_not_claimed(trial: Trial) -> None:
    if "allow" in trial.can.network:
        raise Skipped("the provider claims allow-lists")
    await trial.refuses(Unsupported, says="example.org", network=("example.org",))


@SUBJECT.check(boxes=3)
async def an_allow_list_names_hosts_and_no_more(trial: Trial) -> None:
    if "allow" not in trial.can.network:
        raise Skipped("the provider claims no allow-lists")
    for entry in ("https://example.org", "example.org:443", "example.org/path"):
        await trial.refuses(Unsupported, says=entry, network=("example.org", entry))


@SUBJECT.check()
async def having_no_network_is_refused_where_it_is_not_claimed(trial: Trial) -> None:
    if "none" in trial.can.network:
        raise Skipped("the provider claims to cut the network off")
    await trial.refuses(Unsupported, says="none", network="none")


@SUBJECT.check()
async def a_variable_for_a_port_that_was_not_named_is_refused(trial: Trial) -> None:
    stray = {"KIT_PORT": PORT, "OTHER": PORT + 1}
    await trial.refuses(Unsupported, says=str(PORT + 1), ports=(PORT,), port_env=stray)


@SUBJECT.check()
async def an_unprepared_image_is_an_image_error(trial: Trial) -> None:
    await trial.refuses(ImageError, says="no-such-image", image="no-such-image-anywhere-0")
