"""The registry: what is installed is listed, what is broken stops only the job that uses it, nothing loads early."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from exactsink.contract import CONTRACT_VERSION, ENTRY_POINT_GROUP, Backend, ConfigError, ContractError, Event
from exactsink.job.config import bind_sinks, load_config
from exactsink.job.registry import Registry, installed_plugins

HEAVY = "pluggy", "pyspark", "py4j", "click", "sqlalchemy", "pandas"
PLUGIN = """
    from exactsink.contract.hooks import BackendSpec, hookimpl

    HEARD = []

    @hookimpl
    def exactsink_backends():
        return [{specs}]

    @hookimpl
    def exactsink_event(event):
        HEARD.append(event)
"""
BACKEND = """
    from exactsink.contract.backend import Backend, BackendOptions

    class It(Backend):
        Options = BackendOptions

    def not_a_class(): ...

    class NoBackend: ...
"""


class Plugins:
    """Plugin and backend modules below a folder of the test, gone again with it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.points: list[EntryPoint] = []

    def module(self, name: str, text: str) -> None:
        (self._folder / f"{name}.py").write_text(textwrap.dedent(text))

    def plugin(self, name: str, text: str) -> None:
        self.module(f"plugin_{name}", text)
        self.points.append(EntryPoint(name, f"plugin_{name}", ENTRY_POINT_GROUP))

    def brings(self, name: str, *backends: str, load: str = "backend_it:It", contract: int = CONTRACT_VERSION) -> None:
        specs = (f"BackendSpec({b!r}, {load!r}, 'pip install {b}', {contract}, {{'staged': 'how'}})" for b in backends)
        self.plugin(name, PLUGIN.format(specs=", ".join(specs)))

    def registry(self) -> Registry:
        return Registry(self.points)

    def problems(self) -> dict[str, str]:
        return {row.name: row.problem for row in self.registry().listings()}


@pytest.fixture
def plugins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Plugins]:
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)
    made = Plugins(tmp_path)
    made.module("backend_it", BACKEND)
    yield made
    for name in set(sys.modules) - before:
        if name.startswith(("plugin_", "backend_")):
            del sys.modules[name]


def refused(registry: Registry, name: str) -> ConfigError:
    with pytest.raises(ConfigError) as error:
        registry.load(name, "job.toml line 5")
    assert error.value.what.startswith("job.toml line 5: ")
    return error.value


def test_a_backend_is_found_by_its_name(plugins: Plugins) -> None:
    plugins.brings("one", "first", "second")
    plugins.brings("two", "third")
    registry = plugins.registry()
    found = registry.load("second", "job.toml line 5")
    assert issubclass(found, Backend)
    assert (found.__module__, found.__name__) == ("backend_it", "It")
    listed = [(b.name, b.source, b.contract, b.strategies, b.problem) for b in registry.listings()]
    brought = [("first", "one"), ("second", "one"), ("third", "two")]
    assert listed == [(*names, CONTRACT_VERSION, {"staged": "how"}, "") for names in brought]


def test_a_plugin_that_only_listens_hears_events_also_by_a_hook_of_another_name(plugins: Plugins) -> None:
    listening = PLUGIN.format(specs="").replace("def exactsink_backends", "def unrelated")
    named = '@hookimpl(specname="exactsink_event")\n    def hear'
    plugins.brings("one", "first")
    plugins.plugin("ear", listening)
    plugins.plugin("other", listening.replace("@hookimpl\n    def exactsink_event", named))
    event, registry = Event("claimed", "orders"), plugins.registry()
    registry.send(event)
    assert [sys.modules[f"plugin_{name}"].HEARD for name in ("one", "ear", "other")] == [[event]] * 3
    assert [b.name for b in registry.listings()] == ["first"]


def test_a_plugin_that_fails_on_an_event_stops_no_other(plugins: Plugins, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("aa", "zz"):  # whichever is called first
        plugins.plugin(name, PLUGIN.format(specs="").replace("HEARD.append(event)", "raise RuntimeError('down')"))
    plugins.plugin("ear", PLUGIN.format(specs=""))
    event = Event("claimed", "orders")
    plugins.registry().send(event)
    assert [event] == sys.modules["plugin_ear"].HEARD
    assert caplog.text.count("RuntimeError: down") == 2


def test_the_backends_of_this_installation_are_found_and_load() -> None:
    rows = {row.name: row for row in Registry(installed_plugins()).listings()}
    assert {rows[name].problem for name in ("files", "idempotent_upsert", "kafka", "postgres")} == {""}
    assert all(row.strategies for row in rows.values())


HOOK = "from exactsink.contract import *\n@hookimpl\ndef "
BROKEN = {
    "its module is gone": "",
    "its import fails": "import no_such_library",
    "it is no Python": "def (:",
    "its hook fails": HOOK + "exactsink_backends():\n    raise KeyError('x')",
    "its hook has another signature": HOOK + "exactsink_event(evnt): ...",
    "it gives something else": HOOK + "exactsink_backends():\n    return [3]",
}


@pytest.mark.parametrize("text", BROKEN.values(), ids=BROKEN)
@pytest.mark.parametrize("name", ["a", "z"])
def test_a_broken_plugin_is_listed_and_stops_no_other(plugins: Plugins, name: str, text: str) -> None:
    plugins.plugin(name, text)
    plugins.brings("other", "fine")
    if not text:
        plugins.points[0] = EntryPoint(name, "plugin_uninstalled", ENTRY_POINT_GROUP)
    problems = plugins.problems()
    assert (set(problems), problems["fine"]) == ({name, "fine"}, "")
    assert "Error" in problems[name]
    assert "Error" in refused(plugins.registry(), name).why
    assert plugins.registry().load("fine", "here").__name__ == "It"


def test_a_backend_that_needs_what_is_not_installed_says_what_to_install_when_it_is_used(plugins: Plugins) -> None:
    plugins.module("backend_needy", "import no_such_library")
    plugins.brings("one", "needy", load="backend_needy:It")
    plugins.brings("two", "fine")
    registry = plugins.registry()
    assert registry.load("fine", "here").__name__ == "It"
    error = refused(registry, "needy")
    assert "no_such_library" in error.why
    assert error.next == "pip install needy"
    assert plugins.problems() == {"fine": "", "needy": "ModuleNotFoundError: No module named 'no_such_library'"}


def test_a_backend_is_ok_only_with_all_its_drivers_and_names_all_that_are_missing(plugins: Plugins) -> None:
    spec = "BackendSpec('lazy', 'backend_it:It', 'pip install lazy', drivers=('json', 'no_such', 'nor_such'))"
    plugins.plugin("one", PLUGIN.format(specs=spec))
    assert plugins.problems() == {"lazy": "not installed: no_such, nor_such; next: pip install lazy"}
    assert plugins.registry().load("lazy", "here").__name__ == "It"


ODD = ["backend_it:NoBackend", "backend_it:not_a_class", "backend_it:Missing", "backend_it", ""]


@pytest.mark.parametrize("load", ODD)
def test_what_is_no_backend_or_is_not_where_its_plugin_says_is_refused(plugins: Plugins, load: str) -> None:
    plugins.brings("one", "odd", load=load)
    error = refused(plugins.registry(), "odd")
    assert error.next == "pip install odd"
    assert f"{load} is not a Backend" in error.what or error.why
    assert plugins.problems()["odd"]


@pytest.mark.parametrize("contract", [CONTRACT_VERSION - 1, CONTRACT_VERSION + 1])
def test_a_backend_of_another_contract_is_refused_before_it_is_imported(plugins: Plugins, contract: int) -> None:
    plugins.module("backend_old", "raise AssertionError('imported')")
    plugins.brings("one", "old", load="backend_old:It", contract=contract)
    error = refused(plugins.registry(), "old")
    assert f"contract {contract}" in error.what
    assert f"contract {CONTRACT_VERSION}" in error.why
    newer = contract > CONTRACT_VERSION
    assert error.next == ("pip install --upgrade exactsink" if newer else "pip install old --upgrade")


@pytest.mark.parametrize(("name", "near"), [("postgrs", "postgres"), ("kafak", "kafka"), ("tape", None)])
def test_an_unknown_backend_is_refused_with_the_nearest(plugins: Plugins, name: str, near: str | None) -> None:
    plugins.brings("one", "postgres", "kafka")
    what = f"job.toml line 5: no backend {name} is installed" + (f"; did you mean {near}?" if near else "")
    assert refused(plugins.registry(), name).what == what


def test_a_name_that_two_plugins_bring_is_neithers(plugins: Plugins) -> None:
    plugins.brings("one", "kafka", "fine")
    plugins.brings("two", "kafka")
    plugins.brings("three", "kafka")
    assert plugins.problems() == {"kafka": "both one and three bring it", "fine": ""}
    error = refused(plugins.registry(), "kafka")
    assert "backend kafka is broken" in error.what
    assert error.why == "both one and three bring it"


def modules_after(code: str) -> set[str]:
    command = [sys.executable, "-c", f"{code}\nimport json, sys\nprint(json.dumps(sorted(sys.modules)))"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout))


def test_executors_import_nothing_that_they_do_not_need() -> None:
    light = modules_after("import exactsink")
    assert [name for name in light if name.startswith("exactsink")] == ["exactsink"]
    assert light.isdisjoint({*HEAVY, "pyarrow", "pydantic"})
    task = modules_after("import exactsink.protocol.participant")
    assert {"exactsink.protocol.participant", "exactsink.contract.backend", "pyarrow"} <= task
    driver = {"exactsink.contract.hooks", "exactsink.job.registry", "exactsink.protocol.coordinator"}
    assert task.isdisjoint({*HEAVY, *driver})
    silent = "from exactsink.observe import subscribers\nfrom exactsink.job.config.model import ObserveSection\n"
    observed = modules_after(f"import exactsink.observe.metrics\n{silent}assert subscribers(ObserveSection()) == []")
    assert observed.isdisjoint({"prometheus_client", "opentelemetry"})


def test_making_a_registry_imports_the_plugins_and_no_backend() -> None:
    code = "from exactsink.job.registry import Registry, installed_plugins\nregistry = Registry(installed_plugins())\n"
    made = modules_after(code)
    assert {"exactsink_files.plugin", "exactsink_idempotent_upsert.plugin"} <= made
    backends = {"exactsink_files.backend", "exactsink_idempotent_upsert.backend"}
    assert made.isdisjoint({*backends, "pyarrow.parquet", "sqlalchemy", "pyspark", "click"})
    loaded = modules_after(code + "registry.load('files', 'here')")
    assert loaded & backends == {"exactsink_files.backend"}


def test_no_command_and_no_backend_imports_pandas_which_a_value_of_arrow_at_the_top_of_a_module_does() -> None:
    modules = [f"exactsink_{name}.backend" for name in ("delta", "files", "idempotent_upsert", "kafka")]
    imported = modules_after(f"import exactsink.cli.main, exactsink_postgres.backend, {', '.join(modules)}")
    assert imported.isdisjoint({"pandas", "pyspark"})


WHOLE = """
    from exactsink.contract import Backend, BackendOptions, Traits

    class It(Backend):
        Options = BackendOptions
        strategy, target, traits = "staged", "here", Traits()

        def writer(self, txn, schema, ticket): ...

        def committer(self, ctx): ...
"""
UNFIT = {
    "its traits is None, and must be a Traits": ("Traits()", "None"),
    "its strategy is '', and must be a str": ('"staged"', '""'),
    "It failed: AttributeError: ": ('"here"', "property(lambda self: self.options.path)"),
    "It failed: TypeError: Can't instantiate abstract class It": ("def committer", "def commiter"),
}


@pytest.mark.parametrize(("wrong", "change"), UNFIT.items(), ids=UNFIT)
def test_a_backend_that_does_not_say_what_is_journaled_of_it_is_refused_at_once(
    plugins: Plugins, tmp_path: Path, wrong: str, change: tuple[str, str]
) -> None:
    plugins.module("backend_it", WHOLE.replace(*change))
    plugins.brings("one", "first")
    file = tmp_path / "job.toml"
    file.write_text(f'[job]\nname = "j"\ncheckpoint = "{tmp_path}/c"\n[sinks.a]\nbackend = "first"\n')
    config, document = load_config(file)
    with pytest.raises(ContractError, match=r"a mistake in backend_it\.It") as refused:
        bind_sinks(config, document, plugins.registry())
    assert f"sink a: {wrong}" in str(refused.value)
    plugins.module("backend_it", WHOLE)
    del sys.modules["backend_it"]
    importlib.invalidate_caches()
    assert bind_sinks(config, document, plugins.registry())["a"].backend.strategy == "staged"


def test_a_plugins_package_is_named_where_it_is_listed_and_where_it_fails(plugins: Plugins, tmp_path: Path) -> None:
    plugins.brings("one", "first", load="backend_gone:It")
    info = tmp_path / "exactsink_one-1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: exactsink-one\nVersion: 1.2\n")
    (info / "entry_points.txt").write_text(f"[{ENTRY_POINT_GROUP}]\none = plugin_one\n")
    registry = Registry(installed_plugins())
    (listed,) = [row for row in registry.listings() if row.name == "first"]
    assert (listed.package, "backend_gone" in listed.problem) == ("exactsink-one 1.2", True)
    assert "backend first (exactsink-one 1.2) can't be imported" in refused(registry, "first").what
