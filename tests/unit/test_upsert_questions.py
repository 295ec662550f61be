"""Each database that upserts go into answers every question of `check`."""

from __future__ import annotations

import inspect
from importlib import import_module
from pathlib import Path

import pytest

import exactsink_idempotent_upsert
from exactsink_idempotent_upsert.questions import QUESTIONS, Questions

_ANSWERED = sorted(path.parent.name for path in Path(exactsink_idempotent_upsert.__path__[0]).glob("*/questions.py"))


def test_no_question_is_left_out() -> None:
    assert set(QUESTIONS) == Questions.__abstractmethods__
    assert set(_ANSWERED) == {"generic", "mysql", "postgres", "sqlite"}


@pytest.mark.parametrize("question", QUESTIONS)
@pytest.mark.parametrize("database", _ANSWERED)
def test_every_database_answers_every_question(database: str, question: str) -> None:
    module = import_module(f"exactsink_idempotent_upsert.{database}.questions")
    [answers] = [
        kind
        for _, kind in inspect.getmembers(module, inspect.isclass)
        if kind.__module__ == module.__name__ and issubclass(kind, Questions)
    ]
    assert not inspect.isabstract(answers)
    answer = inspect.getsource(getattr(answers, question))
    assert "return iter(())" not in answer or "  # " in answer, "why there is no answer"
