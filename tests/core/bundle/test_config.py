"""Strict JSON and TOML."""

import pytest

from agent_env_core.bundle.config import ConfigFault, Problems, Table, parse_json, parse_toml


@pytest.mark.parametrize(
    ("data", "value"),
    [
        (b'{"a": [1, 2.5, -0.0, true, null, "x"]}', {"a": [1, 2.5, -0.0, True, None, "x"]}),
        (b"\xef\xbb\xbf[]", []),
        (rb'"\ud83d\ude00"', "\N{GRINNING FACE}"),
        (rb'{"a": {"b": 1}, "c": {"b": 1}}', {"a": {"b": 1}, "c": {"b": 1}}),
    ],
)
def test_json_that_is_read(data, value):
    assert parse_json(data) == value


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "line 1, column 1"),
        (b"[1,]", "is not JSON: line 1, column 3|is not JSON: line 1, column 4"),
        (b"[\n 1\n", "line 3, column 1"),
        (b"[] []", "Extra data"),
        (b'{"a": 1, "b": 2, "a": 3}', "has the key 'a' twice"),
        (b'[{"x": {"y": 1, "y": 1}}]', "has the key 'y' twice"),
        (b"[NaN]", "the number NaN"),
        (b"[-Infinity]", "the number -Infinity"),
        (b"[1e999]", "the number '1e999', which is too large"),
        (b"1" * 5000, "too many digits"),
        (b"[" * 100_000, "nested too deeply"),
        (b"[" * 50_000 + b"]" * 50_000, "nested too deeply"),
        (b'{"a":' * 50_000, "nested too deeply"),
        (b'["a", \n"\xff"]', r"not UTF-8 text \(line 2\)"),
        ('["x"]'.encode("utf-16"), "not UTF-8"),
        (rb'["\ud800"]', "half of a surrogate pair"),
        (rb'{"\udc00x": 1}', "half of a surrogate pair"),
        (b'["\x00"]', "control character"),
    ],
)
def test_json_that_is_refused(data, why):
    with pytest.raises(ConfigFault, match=why):
        parse_json(data)


def test_toml_that_is_read():
    assert parse_toml('\ufeffa = "x"\r\n[b]\nc = 1\n'.encode()) == {"a": "x", "b": {"c": 1}}


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"a = 1\na = 2", "is not TOML: Cannot overwrite"),
        (b"a =", "is not TOML"),
        (b"a = \xff", "not UTF-8"),
        (b"a = " + b"[" * 50_000, "nested too deeply"),
        (b"a = " + b"1" * 5000, "out of range"),
        (b"a = 2024-13-45", "is not TOML|out of range"),
    ],
)
def test_toml_that_is_refused(data, why):
    with pytest.raises(ConfigFault, match=why):
        parse_toml(data)


def test_a_table_says_what_does_not_fit():
    problems = Problems()
    table = Table("x.toml", {"t": 3, "e": " ", "f": 1, "n": True, "z": 0, "m": [], "imagee": 1, "q": 1}, problems)
    assert (table.text("t"), table.text("e"), table.text("none"), table.text("gone", required=True)) == (None,) * 4
    assert (table.flag("f"), table.number("n"), table.number("z"), table.table("m")) == (None,) * 4
    table.known(("t", "e", "f", "n", "z", "m", "image"))
    assert [problem.message for problem in problems.found] == [
        "t must be a non-empty text, not 3",
        "e must be a non-empty text, not ' '",
        "gone is missing",
        "f must be true or false, not 1",
        "n must be a number above 0, not true",
        "z must be a number above 0, not 0",
        "m must be a table, not []",
        "unknown key 'imagee'",
        "unknown key 'q'",
    ]
    assert [problem.fix for problem in problems.found[-2:]] == [
        "did you mean 'image'?",
        "known keys: e, f, image, m, n, t, z",
    ]
