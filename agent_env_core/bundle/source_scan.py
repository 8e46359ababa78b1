"""Finds the name under which an env's server registers itself, without running its code."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator

DECORATOR = "environment_card"


def card_names(source: bytes) -> set[str]:
    """The literal names in ``@environment_card(name="…")`` decorators of a Python file.

    A file that can't be parsed has none: it may be written for another Python, and is not ours to judge.
    """
    if DECORATOR.encode() not in source:
        return set()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a doubtful escape in somebody's file is no concern of the reader
            tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return set()
    return set(_names(tree))


def _names(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        for decorator in node.decorator_list:
            if not isinstance(decorator, ast.Call) or _called(decorator.func) != DECORATOR:
                continue
            for keyword in decorator.keywords:
                given = keyword.value.value if isinstance(keyword.value, ast.Constant) else None
                if keyword.arg == "name" and isinstance(given, str) and given:
                    yield given


def _called(function: ast.expr) -> str:
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""
