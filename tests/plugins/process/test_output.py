from __future__ import annotations

import pytest
from agent_env_process.output import LogFile, older, tail


@pytest.fixture
def path(tmp_path):
    return tmp_path / "main.log"


def test_a_log_never_grows_past_twice_its_limit(path):
    log = LogFile(path, limit=100)
    for number in range(1000):
        log.add(f"line {number}\n".encode())
        assert path.stat().st_size + (older(path).stat().st_size if older(path).exists() else 0) <= 200
    log.close()
    assert tail(path, lines=2) == "line 998\nline 999"


def test_one_piece_past_the_limit_keeps_its_end(path):
    log = LogFile(path, limit=10)
    log.add(b"x" * 1000 + b"the end")
    log.close()
    assert tail(path) == "xxxthe end"


def test_the_tail_spans_both_files(path):
    older(path).write_text("one\ntwo\n")
    path.write_text("three\n")
    assert tail(path, lines=2) == "two\nthree"
    assert tail(path, width=5) == "three"


def test_no_log_says_nothing(path):
    assert tail(path) == ""


def test_a_log_that_cant_be_written_harms_nobody(path):
    log = LogFile(path, limit=10)
    log.add(b"12345")
    path.unlink()
    path.parent.rmdir()
    log.add(b"1234567890")  # would put a file aside that is gone
    log.add(b"more")
    log.close()
