"""Do what a page says, in one folder, as its reader would: write the files, run the commands, compare the output."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from tests.docs.installed import SITE
from tests.docs.pages import ROOT, Command, Step, commands, shown
from tests.e2e.processes import QUICK_JAVA

_PATIENCE_SECONDS = 300
_BORDER = "=====exactsink-docs====="


class Reader:
    """One reader of one page.

    `servers` give, by the name that a block needs them under, the environment in which a command finds each. Each is
    asked once, and the page keeps it; `spark` alone is asked by every block, as a JVM is not a page's own.
    """

    def __init__(self, folder: Path, **servers: Callable[[], Mapping[str, str]]) -> None:
        self._folder = folder / "reader"
        self._folder.mkdir()
        self._site = folder / "site"
        self._servers = {name: at if name == "spark" else functools.cache(at) for name, at in servers.items()}

    def do(self, step: Step) -> None:
        """Do one step. Raises AssertionError when the page says something else than what happens."""
        if step.file:
            path = self._folder / step.file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(step.text, encoding="utf-8")
        elif step.runs:
            self._run(step)
        if step.language == "python":
            compile(step.text, step.place, "exec")

    def _run(self, step: Step) -> None:
        chosen = commands(step)
        servers = {key: value for name in step.needs for key, value in self._servers[name]().items()}
        output = self._shell(_script(chosen), servers, step.place)
        parts = output.split(_BORDER + "\n")
        assert len(parts) == 2 * len(chosen) + 2, f"{step.place}: the shell ended early:\n{output}"
        for index, command in enumerate(chosen):
            reported, code = parts[2 * index], int(parts[2 * index + 1])
            allowed = step.codes if index == len(chosen) - 1 else frozenset({0})
            assert code in allowed, f"{step.place}: `{command.text}` ended with {code}:\n{reported}"
            reported = reported if not reported or reported.endswith("\n") else reported + "\n"
            page = "\n".join(command.shown)
            assert shown(command).fullmatch(reported), (
                f"{step.place}: `{command.text}` printed:\n{reported}\nthe page shows:\n{page}"
            )
        self._folder = Path(parts[-2].strip())

    def _shell(self, script: str, servers: Mapping[str, str], place: str) -> str:
        binaries = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        environment = {
            **os.environ,
            "JAVA_TOOL_OPTIONS": QUICK_JAVA,
            "PATH": binaries,
            "PYSPARK_PYTHON": sys.executable,
            **servers,
        }
        environment |= {SITE: str(self._site), "PYTHONPATH": os.pathsep.join([str(self._site), str(ROOT)])}
        process = subprocess.Popen(
            ["bash", "-c", script],
            cwd=self._folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            output, _ = process.communicate(timeout=_PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{place}: not done after {_PATIENCE_SECONDS} s") from None
        finally:
            with suppress(ProcessLookupError):  # its group: what it left in the background, too
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        return output


def _script(chosen: list[Command]) -> str:
    """Put the commands into one shell, so that $! and $? are what a reader has, with borders between the outputs."""
    border = f"code=$?; printf '%s\\n%s\\n%s\\n' {_BORDER} $code {_BORDER}; (exit $code)"
    body = "\n".join(f"{command.text}\n{border}" for command in chosen)
    return f"{body}\npwd\nprintf '%s\\n' {_BORDER}\n"
