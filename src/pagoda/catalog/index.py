"""The user's package index: which one pip is set up to use, and where in it a wheel lies.

Knows pip's settings and the simple repository API (PEP 503 HTML, PEP 691 JSON). Does not fetch the wheel.
"""

from __future__ import annotations

import ast
import base64
import importlib.util
import json
import os
import re
import shutil
import ssl
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from contextlib import suppress
from dataclasses import dataclass
from html.parser import HTMLParser
from http.client import HTTPException

from pagoda.catalog.builtin import Wheel

DEFAULT_INDEX = "https://pypi.org/simple"
STALL_S = 30.0
"""Seconds without a byte after which a connection is given up."""
_LONGEST_PAGE = 64 * 2**20
_ACCEPT = "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.1"
_PIP_ONLY = ("no-index", "trusted-host", "client-cert")


class IndexUnavailable(Exception):
    """The index cannot be asked in the direct way, or does not have the wheel; the message says why."""


@dataclass(frozen=True, slots=True)
class Located:
    """Where a wheel can be fetched."""

    url: str
    sha256: str | None
    """By the index; None if it does not say."""
    authorization: str | None = None
    """Header for the index's own host."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What pip would use."""

    indexes: tuple[str, ...] = (DEFAULT_INDEX,)
    proxy: str | None = None
    certificates: str | None = None
    """File of certificate authorities."""
    pip_only: str | None = None
    """A setting that only pip itself understands, if there is one."""


def pip_command() -> list[str] | None:
    """How to run pip: this Python's, else one on the PATH, else None."""
    if importlib.util.find_spec("pip") is not None:
        return [sys.executable, "-m", "pip"]
    found = shutil.which("pip") or shutil.which("pip3")
    return [found] if found else None


def settings() -> Settings:
    """Read pip's configuration files and environment (and uv's environment, where pip's says nothing)."""
    values = _pip_values()
    indexes = values.get("index-url") or os.environ.get("UV_DEFAULT_INDEX") or os.environ.get("UV_INDEX_URL")
    return Settings(
        indexes=(indexes or DEFAULT_INDEX, *values.get("extra-index-url", "").split()),
        proxy=values.get("proxy") or None,
        certificates=values.get("cert") or os.environ.get("REQUESTS_CA_BUNDLE") or None,
        pip_only=next((key for key in _PIP_ONLY if values.get(key, "").lower() not in ("", "0", "false", "no")), None),
    )


def _pip_values() -> dict[str, str]:
    """Settings that hold for `pip download`: environment before the command's own section before the global one."""
    lines = ""
    if command := pip_command():
        with suppress(OSError, subprocess.SubprocessError):
            asked = subprocess.run(
                [*command, "config", "list"], capture_output=True, text=True, timeout=60, check=False
            )
            lines = asked.stdout
    found: dict[str, dict[str, str]] = {"global": {}, "download": {}, "env": {}}
    for section, key, value in re.findall(r"^(global|download|:env:)\.([\w-]+)=(.*)$", lines, re.MULTILINE):
        try:
            text = str(ast.literal_eval(value))
        except (ValueError, SyntaxError):
            text = value
        found[section.strip(":")][key] = text
    environment = {k[4:].lower().replace("_", "-"): v for k, v in os.environ.items() if k.startswith("PIP_") and v}
    return found["global"] | found["download"] | found["env"] | environment


def opener(using: Settings) -> urllib.request.OpenerDirector:
    """An HTTP client with the user's proxy and certificates.

    Raises:
        IndexUnavailable: the certificates cannot be read.
    """
    try:
        context = ssl.create_default_context(cafile=using.certificates)
    except OSError as error:
        raise IndexUnavailable(f"certificates {using.certificates}: {error}") from error
    proxies = {"http": using.proxy, "https": using.proxy} if using.proxy else None
    return urllib.request.build_opener(
        urllib.request.ProxyHandler(proxies), urllib.request.HTTPSHandler(context=context)
    )


def locate(client: urllib.request.OpenerDirector, using: Settings, wheel: Wheel) -> Located:
    """Ask each index in turn.

    Raises:
        IndexUnavailable: none has it, with each one's reason.
    """
    if using.pip_only:
        raise IndexUnavailable(f"pip's setting {using.pip_only} is in force")
    reasons = []
    for index in using.indexes:
        try:
            return _ask(client, index, wheel)
        except (OSError, HTTPException, ValueError, IndexUnavailable) as error:
            reasons.append(f"{public(index)}: {reason(error)}")
    raise IndexUnavailable("; ".join(reasons))


def reason(error: Exception) -> str:
    """What went wrong, in a few words."""
    if isinstance(error, urllib.error.HTTPError):
        return f"HTTP {error.code} {error.reason}"
    if isinstance(error, urllib.error.URLError):
        error = error.reason if isinstance(error.reason, Exception) else Exception(error.reason)
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__


def public(url: str) -> str:
    """An address without its user name and password, for messages."""
    return _split_credentials(url)[0]


def _split_credentials(url: str) -> tuple[str, str | None]:
    """The bare address, and the header its user name and password make."""
    parts = urllib.parse.urlsplit(url)
    credentials, at, host = parts.netloc.rpartition("@")
    if not at:
        return url, None
    token = base64.b64encode(urllib.parse.unquote(credentials).encode()).decode()
    return parts._replace(netloc=host).geturl(), f"Basic {token}"


def _ask(client: urllib.request.OpenerDirector, index: str, wheel: Wheel) -> Located:
    bare, authorization = _split_credentials(index)
    if urllib.parse.urlsplit(bare).scheme not in ("http", "https"):
        raise IndexUnavailable("not an http address")
    request = urllib.request.Request(f"{bare.rstrip('/')}/{wheel.project}/", headers={"Accept": _ACCEPT})
    if authorization:
        request.add_unredirected_header("Authorization", authorization)
    with client.open(request, timeout=STALL_S) as answer:
        page = answer.read(_LONGEST_PAGE)
        is_json = "json" in answer.headers.get_content_type()
        base = answer.url
    links = _json_links(page) if is_json else _html_links(page.decode("utf-8", "replace"))
    for href, sha256 in links:
        url = urllib.parse.urljoin(base, href)
        parts = urllib.parse.urlsplit(url)
        name = urllib.parse.unquote(parts.path.rpartition("/")[2])
        if _carries(name, wheel) and parts.scheme in ("http", "https"):
            same_host = parts.netloc == urllib.parse.urlsplit(bare).netloc
            return Located(url.partition("#")[0], sha256, authorization if same_host else None)
    raise IndexUnavailable(f"has no wheel of {wheel.requirement}")


def _carries(file_name: str, wheel: Wheel) -> bool:
    """Whether a file is the wheel: name-version-python-abi-platform.whl, the name with runs of -_. as one (PEP 427)."""
    project, version, *_ = [*file_name.split("-"), "", ""]
    same = re.sub(r"[-_.]+", "-", project).lower() == wheel.project and version == wheel.version
    return same and file_name.endswith(".whl")


def _json_links(page: bytes) -> list[tuple[str, str | None]]:
    try:
        files = json.loads(page)["files"]
        return [(str(file["url"]), file.get("hashes", {}).get("sha256")) for file in files]
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise IndexUnavailable(f"its answer is no simple-API page ({type(error).__name__})") from error


class _Anchors(HTMLParser):
    """The addresses of a page's links."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[tuple[str, str | None]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        href = dict(attrs).get("href")
        if tag == "a" and href:
            sha256 = re.search(r"#sha256=([0-9a-fA-F]{64})$", href)
            self.links.append((href, sha256[1].lower() if sha256 else None))


def _html_links(page: str) -> list[tuple[str, str | None]]:
    anchors = _Anchors()
    anchors.feed(page)
    return anchors.links
