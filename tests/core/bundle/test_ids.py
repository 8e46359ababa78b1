"""Entity ids: where they come from, and what they may hold."""

from pathlib import Path

import pytest

from agent_env_core.bundle.ids import MAX_BYTES, id_fault, id_root, name_fault


@pytest.mark.parametrize(
    ("home", "root", "want"),
    [
        ("/home/ada", "/home/ada/work/gardenplan", "@local/~/work/gardenplan"),
        ("/home/ada", "/home/ada", "@local/~"),
        ("/home/ada", "/home/adabel/gardenplan", "@local/home/adabel/gardenplan"),
        ("/home/ada", "/srv/b", "@local/srv/b"),
        ("/", "/srv/b", "@local/srv/b"),
        ("/home/ada", "/srv/cafe\u0301", "@local/srv/caf\u00e9"),
    ],
)
def test_the_root_of_ids(monkeypatch, home, root, want):
    monkeypatch.setenv("HOME", home)
    assert id_root(Path(root)) == want


def test_a_home_reached_by_a_link_counts_as_home(monkeypatch, tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    monkeypatch.setenv("HOME", str(tmp_path / "link"))
    assert id_root(tmp_path / "real" / "b") == "@local/~/b"


@pytest.mark.parametrize(
    "entity_id",
    [
        "@local/a",
        "@local/~/A 1/._-~@()+,&",
        "@local/\u6e2f/\u0645\u0631\u0641\u0623",
        "@local/\u0939\u093f\u0928\u094d\u0926\u0940",
    ],
)
def test_ids_that_will_do(entity_id):
    assert id_fault(entity_id) == ""


@pytest.mark.parametrize(
    ("entity_id", "why"),
    [
        ("garden", "must start with @local/"),
        ("@local/", "a part '' between"),
        ("@local/a//b", "a part '' between"),
        ("@local/a/../b", "a part '..'"),
        ("@local/./b", "a part '.'"),
        ("@local/ a", "begins or ends with a space"),
        ("@local/a#b?#", "can't hold: # ?"),
        ("@local/a\nb", "can't hold: U+000A"),
        ("@local/a\udcffb", "can't hold: U+DCFF"),
        ("@local/a:b", "can't hold: :"),
        ("@local/\N{SNOWMAN}", "can't hold"),
        ("@local/cafe\u0301", "NFC"),
        ("@local/" + "a" * MAX_BYTES, "4103 bytes long, and 4096 is the limit"),
        ("@local/" + "\u6e2f" * 1400, "4207 bytes"),
    ],
)
def test_ids_that_will_not_do(entity_id, why):
    assert why in id_fault(entity_id)


def test_names_are_composed_before_they_are_judged():
    assert name_fault("cafe\u0301") == ""
    assert "space" in name_fault(" a")
