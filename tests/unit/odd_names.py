"""Names that a store must carry as they are: quotes, separators, line ends and control characters."""

from __future__ import annotations

ODD_NAMES = {
    "quotes": "a\"b'c`d",
    "statement": '"; DROP TABLE t; --',
    "separators": "a/b=c\\d,e;f%2F%s{}",
    "line ends": "a\nb\r\nc\u2028d",
    "controls": "a\tb\x01\x1b\x7f",
    "dots": "..",
    "spaces": " a ",
}
