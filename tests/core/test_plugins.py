"""Discovery, loading by name, and what happens to plugins that are broken in every way we know."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from textwrap import dedent

import pytest

from agent_env_core import plugins as plugins_module
from agent_env_core.errors import PluginError
from agent_env_core.plugins import KINDS, OUR_EXTRAS, Entry, Plugins

COMBINER = """
    from agent_env_core import hookimpl

    @hookimpl
    def agent_env_reward_combiners(register):
        register({name!r}, lambda text: lambda scores: 1.0)
"""

Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Puts a distribution on the path, as pip would: ``install("dist", {"name": "module"}, module="source")``."""
    monkeypatch.delenv("AGENT_ENV_PLUGINS", raising=False)
    before = set(sys.modules)

    def install(distribution: str, points: Mapping[str, str], group: str = "agent_env", **modules: str) -> None:
        folder = tmp_path / distribution
        info = folder / f"{distribution.replace('-', '_')}-1.2.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.2\n")
        lines = [f"[{group}]", *(f"{name} = {value}" for name, value in points.items())]
        (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
        for name, source in modules.items():
            (folder / f"{name}.py").write_text(dedent(source))
        monkeypatch.syspath_prepend(str(folder))

    yield install
    for name in set(sys.modules) - before:
        if (getattr(sys.modules[name], "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]


def entry_of(plugins: Plugins, distribution: str) -> Entry:
    (entry,) = [entry for entry in plugins.entries if entry.distribution == distribution]
    return entry


def test_a_name_loads_its_entry_point_and_no_other(install: Install) -> None:
    install("acme-one", {"acme": "acme_one"}, acme_one=COMBINER.format(name="acme"))
    install("acme-two", {"other": "acme_two"}, acme_two="raise RuntimeError('nobody asked for this')")

    combiner = Plugins().reward_combiner("acme:anything")

    assert combiner({"grade": 0.5}) == 1.0
    assert "acme_one" in sys.modules
    assert "acme_two" not in sys.modules


def test_text_after_the_colon_reaches_the_factory(install: Install) -> None:
    source = """
        from agent_env_core import hookimpl

        @hookimpl
        def agent_env_reward_combiners(register):
            register("constant", constant)

        def constant(text):
            value = float(text)
            return lambda scores: value
    """
    install("acme", {"constant": "acme_constant"}, acme_constant=source)
    plugins = Plugins()
    assert plugins.reward_combiner("constant:0.25")({}) == 0.25
    with pytest.raises(ValueError, match="could not convert"):
        plugins.reward_combiner("constant:much")


def test_an_object_can_be_the_plugin(install: Install) -> None:
    source = """
        from agent_env_core import hookimpl

        class Acme:
            @hookimpl
            def agent_env_reward_combiners(self, register):
                register("acme", lambda text: lambda scores: 2.0)

        plugin = Acme()
    """
    install("acme", {"acme": "acme_object:plugin"}, acme_object=source)
    assert Plugins().reward_combiner("acme")({}) == 2.0


def test_one_module_may_stand_behind_several_names_and_both_groups(install: Install) -> None:
    source = """
        from agent_env_core import hookimpl

        @hookimpl
        def agent_env_reward_combiners(register):
            register("acme", lambda text: lambda scores: 1.0)
            register("emca", lambda text: lambda scores: -1.0)

        @hookimpl
        def agent_env_toolset_key(task):
            return "acme"
    """
    install("acme", {"acme": "acme_many", "emca": "acme_many"}, acme_many=source)
    install("acme-extend", {"acme": "acme_many"}, group="agent_env.extend")
    plugins = Plugins()
    assert [plugins.reward_combiner(name)({}) for name in ("acme", "emca")] == [1.0, -1.0]
    plugins.extend()
    assert entry_of(plugins, "acme-extend").status == "loaded"


def test_two_distributions_with_one_name_and_neither_wins(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    install("acme-one", {"acme": "acme_one"}, acme_one=COMBINER.format(name="acme"))
    install("acme-two", {"acme": "acme_two"}, acme_two=COMBINER.format(name="acme"))
    plugins = Plugins()
    with pytest.raises(PluginError, match=r"claimed by acme-one, acme-two.*AGENT_ENV_PLUGINS"):
        plugins.reward_combiner("acme")
    assert {"acme_one", "acme_two"}.isdisjoint(sys.modules)

    monkeypatch.setenv("AGENT_ENV_PLUGINS", "acme-two")
    assert Plugins().reward_combiner("acme")({}) == 1.0
    assert "acme_one" not in sys.modules


def test_a_built_in_cannot_be_replaced(install: Install) -> None:
    install("acme", {"mean": "acme_mean"}, acme_mean=COMBINER.format(name="mean"))
    plugins = Plugins()
    assert plugins.reward_combiner("mean")({"a": 0.0, "b": 0.5}) == 0.25
    assert entry_of(plugins, "acme").status == "conflict"
    assert "built in and can't be replaced" in entry_of(plugins, "acme").detail


def test_a_plugin_cannot_smuggle_in_a_name_it_has_no_entry_point_for(install: Install) -> None:
    install("acme", {"acme": "acme_other"}, acme_other=COMBINER.format(name="docker"))
    with pytest.raises(PluginError, match=r"registers no reward combiner of that name \(it registers 'docker'"):
        Plugins().reward_combiner("acme")


BROKEN = {
    "raises at import": ("raise RuntimeError('boom')", "RuntimeError: boom"),
    "exits at import": ("import sys; sys.exit(3)", "SystemExit: 3"),
    "does not parse": ("def (:", "SyntaxError: "),
    "misses a dependency": ("import a_package_nobody_has", "No module named 'a_package_nobody_has'"),
    "is no plugin": ("answer = 42", "implements no hook"),
    "can't be hashed": (
        "from agent_env_core import hookimpl\nclass P:\n __hash__ = None\n"
        " @hookimpl\n def agent_env_reward_combiners(self, register): ...\nplugin = P()",
        "unhashable type: 'P'",
    ),
    "misspells a hook": (
        "from agent_env_core import hookimpl\n@hookimpl\ndef agent_env_reward_combinators(register): ...",
        "unknown hook 'agent_env_reward_combinators'",
    ),
    "misnames an argument": (
        "from agent_env_core import hookimpl\n@hookimpl\ndef agent_env_reward_combiners(registry): ...",
        "registry",
    ),
    "raises while it registers": (
        "from agent_env_core import hookimpl\n@hookimpl\ndef agent_env_reward_combiners(register): raise KeyError('k')",
        "KeyError: 'k'",
    ),
    "registers nonsense": (
        "from agent_env_core import hookimpl\n@hookimpl\ndef agent_env_reward_combiners(register): register('acme', 5)",
        "needs a name and a callable, got 'acme' and 5",
    ),
    "registers twice": (
        "from agent_env_core import hookimpl\n@hookimpl\ndef agent_env_reward_combiners(register):\n"
        " register('acme', len); register('acme', len)",
        "'acme' is registered twice",
    ),
}


@pytest.mark.parametrize("fault", BROKEN)
def test_a_broken_plugin_is_recorded_and_others_work(install: Install, fault: str) -> None:
    source, expected = BROKEN[fault]
    install("acme-good", {"good": "acme_good"}, acme_good=COMBINER.format(name="good"))
    install("acme-bad", {"acme": "acme_bad:plugin" if "plugin = " in source else "acme_bad"}, acme_bad=source)
    plugins = Plugins()

    with pytest.raises(PluginError, match="'acme' of acme-bad") as caught:
        plugins.reward_combiner("acme")

    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)
    entry = entry_of(plugins, "acme-bad")
    assert entry.status == "failed"
    assert expected in entry.detail
    assert entry.trace.startswith("Traceback") or "SyntaxError" in entry.trace
    assert plugins.reward_combiner("good")({}) == 1.0
    with pytest.raises(PluginError, match="can't be used"):  # the second try says it as well
        plugins.reward_combiner("acme")


@pytest.mark.parametrize("value", ["acme_wrong:number", "acme_wrong:nothing", "acme_wrong:text", "acme_wrong:gone"])
def test_entry_points_to_the_wrong_type(install: Install, value: str) -> None:
    install("acme", {"acme": value}, acme_wrong="number = 5; nothing = None; text = 'plugin'")
    with pytest.raises(PluginError, match=r"implements no hook|has no attribute 'gone'"):
        Plugins().sandbox_provider("acme")


def test_a_plugin_with_one_bad_hook_contributes_none(install: Install) -> None:
    source = """
        from agent_env_core import hookimpl

        @hookimpl
        def agent_env_episode_event(event):
            raise AssertionError("must never be called")

        @hookimpl
        def agent_env_toolset_key(tusk):
            return 1
    """
    install("acme", {"acme": "acme_half"}, group="agent_env.extend", acme_half=source)
    plugins = Plugins()
    assert all(i.plugin_name != "acme_half" for i in plugins.hook.agent_env_episode_event.get_hookimpls())
    assert entry_of(plugins, "acme").status == "failed"


def test_a_keyboard_interrupt_is_never_swallowed(install: Install) -> None:
    install("acme", {"acme": "acme_interrupt"}, acme_interrupt="raise KeyboardInterrupt")
    with pytest.raises(KeyboardInterrupt):
        Plugins().sandbox_provider("acme")


def test_a_plugin_named_none_is_just_a_name(install: Install) -> None:
    install("acme", {"none": "acme_none"}, acme_none=COMBINER.format(name="none"))
    assert Plugins().reward_combiner("none")({}) == 1.0


@pytest.mark.parametrize(
    ("setting", "allowed"), [("acme", True), (" acme , x", True), ("acme-dist", True), ("", False)]
)
def test_the_allow_list(install: Install, monkeypatch: pytest.MonkeyPatch, setting: str, allowed: bool) -> None:
    install("acme-dist", {"acme": "acme_allowed"}, acme_allowed=COMBINER.format(name="acme"))
    monkeypatch.setenv("AGENT_ENV_PLUGINS", setting)
    plugins = Plugins()
    if allowed:
        assert plugins.reward_combiner("acme")({}) == 1.0
    else:
        with pytest.raises(PluginError, match="AGENT_ENV_PLUGINS doesn't list it"):
            plugins.reward_combiner("acme")
        assert "acme_allowed" not in sys.modules
    assert plugins.reward_combiner("min")({"a": 0.5, "b": 0.25}) == 0.25  # built-ins are never switched off


def test_a_failing_extension_disturbs_nobody(install: Install) -> None:
    install("acme-bad", {"bad": "acme_ext_bad"}, group="agent_env.extend", acme_ext_bad="1 / 0")
    good = """
        from agent_env_core import hookimpl

        @hookimpl
        def agent_env_toolset_key(task):
            return ("acme", task)
    """
    install("acme-good", {"good": "acme_ext_good"}, group="agent_env.extend", acme_ext_good=good)
    plugins = Plugins()
    assert plugins.hook.agent_env_toolset_key(task="t") == ("acme", "t")
    assert entry_of(plugins, "acme-bad").detail == "ZeroDivisionError: division by zero"


def test_the_report_covers_everything(install: Install) -> None:
    install("acme-good", {"good": "acme_good"}, acme_good=COMBINER.format(name="good"))
    install("acme-bad", {"bad": "acme_bad"}, acme_bad="1 / 0")
    install("acme-liar", {"liar": "acme_liar"}, acme_liar=COMBINER.format(name="truth"))
    plugins = Plugins()
    plugins.load_all()
    assert entry_of(plugins, "acme-good").provides == ("reward combiner",)
    assert entry_of(plugins, "acme-bad").status == "failed"
    assert entry_of(plugins, "acme-liar").detail == "LookupError: it registers nothing named 'liar'"
    assert [entry.detail for entry in plugins.entries if entry.builtin and entry.status != "loaded"] == []


def test_a_failure_in_a_hook_can_be_recorded(install: Install) -> None:
    install("acme", {"acme": "acme_good"}, acme_good=COMBINER.format(name="acme"))
    plugins = Plugins()
    plugins.load_all()
    plugins.record_failure("acme_good", ValueError("late"))
    assert (entry_of(plugins, "acme").status, entry_of(plugins, "acme").detail) == ("failed", "ValueError: late")


def test_an_unknown_name_lists_the_known_ones(install: Install) -> None:
    install("acme", {"acme": "acme_good"}, acme_good=COMBINER.format(name="acme"))
    with pytest.raises(PluginError, match=r"there is no reward combiner 'total'; known: acme, mean, min, weighted"):
        Plugins().reward_combiner("total")


@pytest.mark.parametrize(
    ("kind", "name", "meant"),
    [
        ("reward combiner", "maen", "mean"),
        ("step type", "prompt_agnet", "prompt_agent"),
        ("sandbox provider", "Docker", "docker"),
        ("trainer adapter", "grop", "grpo"),
    ],
)
def test_a_misspelt_name_says_what_was_meant(kind: str, name: str, meant: str) -> None:
    with pytest.raises(PluginError) as caught:
        Plugins().named(kind, name)
    assert str(caught.value) == f"there is no {kind} {name!r}; did you mean {meant!r}?"
    assert caught.value.fix == f"did you mean {meant!r}?"


@pytest.mark.parametrize("name", OUR_EXTRAS)
def test_one_of_ours_that_is_missing_gives_the_install_line(name: str) -> None:
    kind = "trainer adapter" if "grpo" in name else "sandbox provider"
    with pytest.raises(PluginError) as caught:
        Plugins(entries=[]).named(kind, name)
    assert f"pip install 'agentenv-framework[{OUR_EXTRAS[name]}]'" in str(caught.value)


def test_every_distribution_counts_once_however_often_it_is_on_the_path(install: Install, tmp_path: Path) -> None:
    install("acme", {"acme": "acme_good"}, acme_good=COMBINER.format(name="acme"))
    sys.path.insert(0, str(tmp_path / "acme"))  # undone by the fixture's monkeypatch, which restores the whole list
    assert entry_of(Plugins(), "acme").status == "unloaded"


def test_the_plugins_of_a_process_are_found_once() -> None:
    assert plugins_module.plugins() is plugins_module.plugins()


def test_every_kind_names_a_hook() -> None:
    assert set(KINDS.values()) <= set(vars(plugins_module.hookspecs))
