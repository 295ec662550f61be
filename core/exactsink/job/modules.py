"""Find the user's own modules: installed ones, and those in the folders that the job names. Imports none.

Another module of the same name never silently replaces a module in these folders. The folder in which a job is started
is not searched.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder

from exactsink.contract import ConfigError

__all__ = ["find_module", "not_importable", "search_in"]


def search_in(folders: Sequence[str]) -> None:
    """Let Python search these folders after all others, here and in workers that start from now on. Idempotent."""
    sys.path.extend(place for place in folders if place not in sys.path)
    known = list(filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)))
    os.environ["PYTHONPATH"] = os.pathsep.join([*known, *(place for place in folders if place not in known)])


def find_module(key: str, name: str, folders: Sequence[str]) -> None:
    """Find the module of `module:function` without running its code.

    Raises ConfigError if there is none, or if Python would import another module in place of one in the job's folders.
    """
    module = name.partition(":")[0]
    own = _file_of(module, folders)
    loaded = sys.modules.get(module)
    top = module.partition(".")[0]
    if loaded is not None:
        first = getattr(loaded, "__file__", None)
    else:  # the job's folders come last, as `search_in` puts them
        first = None if top in sys.builtin_module_names else _file_of(module, [*sys.path, *folders])
    if own is not None and (first is None or os.path.realpath(first) != os.path.realpath(own)):
        raise ConfigError(
            f"{key} {name}: {own} is not the module that Python finds by this name",
            why=f"that is {first or 'a built-in one'}",
            next=f"give {top} in {', '.join(folders)} another name",
        )
    if own is None and loaded is None and not _is_found(top):
        raise not_importable(key, name, folders, f"No module named {module!r}")


def not_importable(key: str, name: str, folders: Sequence[str], why: str) -> ConfigError:
    """Return the error for a function that can't be imported."""
    return ConfigError(
        f"{key} {name} can't be imported",
        why=f"{why}; searched: {', '.join(folders)}, the installed packages and PYTHONPATH",
        next='put the module beside the job\'s file, or name its folder: [job] modules = [".", "FOLDER"]',
    )


def _is_found(top: str) -> bool:
    """Return whether any finder knows this package, including the finder of an editable installation.

    Python skips a finder without `find_spec`, which packages for old Pythons may install.
    """
    return any(finder.find_spec(top, None) is not None for finder in sys.meta_path if hasattr(finder, "find_spec"))


def _file_of(module: str, folders: Sequence[str]) -> str | None:
    """Return the file of a dotted module name below these folders, without running its code."""
    names, places = module.split("."), list(folders)
    spec: ModuleSpec | None = None
    for count in range(1, len(names) + 1):
        spec = PathFinder.find_spec(".".join(names[:count]), places)
        if spec is None:
            return None
        places = list(spec.submodule_search_locations or ())
    return spec.origin if spec is not None else None
