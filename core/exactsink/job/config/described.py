"""Describe a job's file by its models, for the reference and for the schema that editors read."""

from __future__ import annotations

import ast
import inspect
import textwrap
import typing
from collections.abc import Mapping

from pydantic import BaseModel

from exactsink.job.config.model import JobConfig, SinkSection

__all__ = ["attribute_docstrings", "prose", "sections"]


def sections() -> Mapping[str, type[BaseModel]]:
    """Return the model of each table of the file, by the table's name. `sinks.NAME` means every sink's table."""
    found: dict[str, type[BaseModel]] = {}
    for name, field in JobConfig.model_fields.items():
        kinds = [field.annotation, *typing.get_args(field.annotation)]
        models = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)]
        if models:
            found["sinks.NAME" if models[0] is SinkSection else name] = models[0]
    return found


def attribute_docstrings(model: type) -> Mapping[str, str]:
    """Find the docstring below each field, which pydantic does not keep. Empty if the source is not installed."""
    try:
        (body,) = ast.parse(textwrap.dedent(inspect.getsource(model))).body
    except OSError:
        return {}
    assert isinstance(body, ast.ClassDef)
    inherited = (base for base in model.__bases__ if issubclass(base, BaseModel) and base is not BaseModel)
    found = {name: text for base in inherited for name, text in attribute_docstrings(base).items()}
    for statement, after in zip(body.body, body.body[1:], strict=False):
        if not (isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name)):
            continue
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            found[statement.target.id] = prose(inspect.cleandoc(str(after.value.value)))
    return found


def prose(text: str) -> str:
    """Join the lines of each paragraph."""
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in text.split("\n\n"))
