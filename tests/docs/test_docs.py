"""The documentation says what is there: paths, names, fields, errors, flags, metrics."""

from __future__ import annotations

import importlib.util
import re
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import typer

from pagoda import catalog, config, errors
from pagoda.backends.cpu import WEIGHT_FORMATS
from pagoda.cli._app import app
from pagoda.models import FAMILIES
from pagoda.server.errors import describe

from .pages import NAMES, PAGES, ROOT, defines, links, paths, places, read, references

SOURCES = [
    p for folder in ("src", "native/src") for p in (ROOT / folder).rglob("*") if p.suffix in (".py", ".h", ".cpp")
]
README, TOUR = read("README.md"), read("docs/tour.md")


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_paths_and_links_exist(page: Path) -> None:
    text = page.read_text()
    missing = [path for path in paths(page) if not places(path, page)]
    missing += [link for link in links(text) if not (page.parent / link.partition("#")[0]).exists()]
    assert not missing, f"{page.name} names what is not there"


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_names_of_code_exist(page: Path) -> None:
    missing = [
        f"{path}:{name}"
        for path, name in references(page)
        if not any(defines(place, name) for place in places(path, page) if place.is_file())
    ]
    assert not missing, f"{page.name} names what is not there"


def test_the_pages_name_enough_to_be_tested() -> None:
    tour = ROOT / "docs" / "tour.md"
    assert len(references(tour)) > 40
    assert len(set(paths(tour))) > 80


def test_a_wrong_name_is_found() -> None:
    place = ROOT / "src/pagoda/engine/engine.py"
    assert defines(place, "Engine.submit")
    assert not defines(place, "Engine.submits")
    assert not defines(place, "Roster.add")  # only imported there
    assert places("engine/engine.py", ROOT / "docs/tour.md")
    assert not places("engine/engines.py", ROOT / "docs/tour.md")


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: str(source.relative_to(ROOT)))
def test_the_tour_has_a_line_for_every_file(source: Path) -> None:
    name = source.relative_to(ROOT / ("native/src" if "native" in source.parts else "src/pagoda"))
    if source.name != "__init__.py":
        assert f"`{name}`" in TOUR, f"add a line for {name} to docs/tour.md"


def _reference() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_reference", ROOT / "docs" / "make_reference.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["configuration.md", "metrics.md"])
def test_generated_pages_are_current(name: str) -> None:
    page = _reference().PAGES[name]()
    assert page == read(f"docs/{name}"), "run PYTHONPATH=src python docs/make_reference.py"


def test_every_field_of_the_configuration_is_documented() -> None:
    reference, page = _reference(), read("docs/configuration.md")
    parts = {part for part in vars(config).values() if is_dataclass(part) and isinstance(part, type)}
    assert parts - {config.EngineConfig} == set(reference.PARTS)
    for part in reference.PARTS:
        assert set(reference.field_texts(part)) == {field.name for field in fields(part)}
        for field in fields(part):
            assert f"| `{field.name}`:" in page
    assert sum(len(fields(part)) for part in reference.PARTS) < 60


def test_every_environment_variable_is_documented() -> None:
    used = {name for source in SOURCES for name in re.findall(r"environ\S*?[\[(]\"(PAGODA_\w+)\"", source.read_text())}
    used |= {name for source in SOURCES for name in re.findall(r"getenv\(\"(\w+)\"", source.read_text())}
    assert used == set(_reference().ENVIRONMENT)


def _drawn() -> dict[str, tuple[str, int | None]]:
    """Class -> (its parent, HTTP status or None), as the tree in errors.py's docstring has them."""
    found: dict[str, tuple[str, int | None]] = {}
    above: list[str] = []
    for line in str(errors.__doc__).splitlines():
        match = re.fullmatch(r"    ([│ ├└─]*)(\w+)(?:  .*?(\d{3})?)?", line)
        if match:
            depth = len(match[1]) // 4
            above[depth:] = [match[2]]
            found[match[2]] = (above[depth - 1] if depth else "Exception", int(match[3]) if match[3] else None)
    return found


def test_the_tree_of_errors_is_drawn_as_it_is() -> None:
    kinds = {name: kind for name, kind in vars(errors).items() if isinstance(kind, type)}
    drawn = _drawn()
    assert set(drawn) == set(kinds)
    for name, (parent, status) in drawn.items():
        assert kinds[name].__bases__[0].__name__ == parent, name
        if status is not None:
            assert describe(kinds[name]("x"))[0] == status, name


def _commands(command: Any, name: str) -> list[tuple[str, Any]]:
    """Every command and subcommand, by its full name."""
    found = [(name, command)]
    for each in command.list_commands(None) if hasattr(command, "list_commands") else ():
        found += _commands(command.get_command(None, each), f"{name} {each}")
    return found


COMMANDS = _commands(typer.main.get_command(app), "pagoda")


@pytest.mark.parametrize(("name", "command"), COMMANDS, ids=[name for name, _ in COMMANDS])
def test_every_command_and_flag_has_help(name: str, command: Any) -> None:
    assert command.help, name
    for each in command.params:
        assert each.name == "help" or getattr(each, "help", None), f"{name}: {each.name}"


def test_the_readme_names_every_command() -> None:
    leaves = [name for name, command in COMMANDS if not hasattr(command, "list_commands")]
    assert len(leaves) >= 5
    for name in leaves:
        assert re.search(rf"^\| `{name}\b", README, flags=re.M), name


def test_the_readme_says_what_can_be_run() -> None:
    for name in WEIGHT_FORMATS:
        assert name.upper() in README
    for name in (*FAMILIES, *catalog.BUILTINS):
        assert re.search(rf"\b{name}\b", README, flags=re.I)


def test_the_readme_has_its_block_of_figures() -> None:
    assert README.count("<!-- figures -->") == 2
