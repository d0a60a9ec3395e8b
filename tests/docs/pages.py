"""The pages of the documentation, and what stands in them: paths, names of code, links, blocks of code."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = sorted({*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")})
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]
SUFFIXES = ("py", "pyi", "h", "cpp", "md", "toml", "txt", "json", "npz")
BASES = ("", "docs", "src/pagoda", "native/src", "native")
"""Where a path in backticks may begin, besides the page's own folder."""

_PATH = re.compile(rf"[\w./*-]+\.(?:{'|'.join(SUFFIXES)})|[\w.-]+/(?:[\w./*-]*)")
_CODE = re.compile(rf"([\w./-]+\.(?:{'|'.join(SUFFIXES)})):(\w[\w.:]*)(?:\(\))?")


def read(name: str) -> str:
    return (ROOT / name).read_text()


def spans(text: str) -> list[str]:
    """What stands in single backticks, outside blocks."""
    return re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S))


def blocks(text: str, language: str) -> list[str]:
    """The fenced blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.M | re.S)


def links(text: str) -> list[str]:
    """The targets of links within the repository."""
    return [t for t in re.findall(r"\]\(([^)\s]+)\)", text) if not t.startswith(("http:", "https:", "#"))]


def places(span: str, page: Path) -> list[Path]:
    """The files or folders that a path means; none if it means nothing."""
    found = []
    for base in (page.parent, *(ROOT / base for base in BASES)):
        found += base.glob(span.rstrip("/")) if "*" in span else [base / span]
    return [place for place in found if place.exists()]


def paths(page: Path) -> list[str]:
    """What looks like a path of this repository: it ends in a known suffix or a slash, or begins in a known folder."""
    found = []
    for span in spans(page.read_text()):
        span = span.partition(":")[0] if _CODE.fullmatch(span) else span
        if not _PATH.fullmatch(span) or span.startswith("/"):
            continue
        named = span.rpartition(".")[2] in SUFFIXES or span.endswith("/")
        if named or places(span.split("/")[0], page):
            found.append(span)
    return found


def references(page: Path) -> list[tuple[str, str]]:
    """(path, name) of every `path:name`."""
    return [(m[1], m[2]) for span in spans(page.read_text()) if (m := _CODE.fullmatch(span))]


def defines(path: Path, name: str) -> bool:
    """Whether a file defines a name: in Python a function, class, method or variable; elsewhere the word is there."""
    if path.suffix not in (".py", ".pyi"):
        return re.search(rf"\b{re.escape(name)}\b", path.read_text()) is not None
    body: list[ast.stmt] = ast.parse(path.read_text()).body
    for part in name.split("."):
        found = next((s for s in body if part in _defined(s)), None)
        if found is None:
            return False
        body = getattr(found, "body", [])
    return True


def _defined(statement: ast.stmt) -> list[str]:
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [statement.name]
    targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
    return [target.id for target in targets if isinstance(target, ast.Name)]
