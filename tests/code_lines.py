"""Which lines of a file are code: what budgets count."""

from __future__ import annotations

import ast
import io
import tokenize

_NO_CODE = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)


def code_lines(source: str, *without: type[ast.stmt]) -> set[int]:
    """Return the numbers of a file's lines but for blank ones, comments and docstrings, and for these statements."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        if text or isinstance(node, without):
            lines.difference_update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return lines
