"""A fresh interpreter that does one piece of work: `python -m exactsink.testing.fresh_process`."""

from __future__ import annotations

import sys

from exactsink.testing.processes import answer_in_fresh_process

__all__: list[str] = []

if __name__ == "__main__":
    answer_in_fresh_process(sys.stdin.buffer)
