"""`docs/http.md` names every field, neutral value, route and error code there is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pagoda.server import errors
from pagoda.server.app import ROUTES
from pagoda.server.openai.chat import ChatFields
from pagoda.server.openai.completions import CompletionFields
from pagoda.server.openai.fields import NEUTRAL_CHAT, NEUTRAL_COMPLETIONS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "http.md").read_text()
SOURCES = [path.read_text() for path in (ROOT / "src" / "pagoda" / "server").rglob("*.py")]
CODES = {code for source in SOURCES for code in re.findall(r'code="(\w+)"', source)}
FIELDS = {*ChatFields.__struct_fields__, *CompletionFields.__struct_fields__, *NEUTRAL_CHAT, *NEUTRAL_COMPLETIONS}
NAMES = FIELDS | CODES | {code for _, _, code in errors._TABLE}


@pytest.mark.parametrize("name", sorted(NAMES))
def test_named(name: str) -> None:
    assert re.search(rf"`{name}\b", PAGE)


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.path)
def test_routes(route: object) -> None:
    assert route.path.replace("{model:path}", "{id}") in PAGE  # type: ignore[attr-defined]
