"""A package index on the loopback device that can misbehave, and wheels and models small enough for it."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import re
import threading
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from pagoda.catalog.builtin import Builtin, Wheel


def make_wheel(project: str, version: str, files: dict[str, bytes]) -> bytes:
    """A wheel that pip accepts, stored uncompressed."""
    name = project.replace("-", "_")
    info = f"{name}-{version}.dist-info"
    files = {
        **files,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {project}\nVersion: {version}\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{path},,\n" for path in [*files, f"{info}/RECORD"])
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for path, content in {**files, f"{info}/RECORD": record.encode()}.items():
            archive.writestr(path, content)
    return buffer.getvalue()


def wheel_name(wheel: Wheel) -> str:
    return f"{wheel.project.replace('-', '_')}-{wheel.version}-py3-none-any.whl"


def make_builtin(parts: list[bytes], name: str = "toy") -> tuple[Builtin, dict[str, bytes]]:
    """A built-in whose file is these parts joined, one wheel for each; and the wheels by file name."""
    wheels, files = [], {}
    for i, part in enumerate(parts):
        member = f"toy_model_part{i}/data/toy.gguf"
        content = make_wheel(f"toy-model-part{i}", "1.2.3", {member: part})
        wheels.append(Wheel(f"toy-model-part{i}", "1.2.3", member, len(content)))
        files[wheel_name(wheels[-1])] = content
    whole = b"".join(parts)
    builtin = Builtin(name, "A toy", "CC0-1.0", tuple(wheels), len(whole), hashlib.sha256(whole).hexdigest())
    return builtin, files


class IndexServer(ThreadingHTTPServer):
    """Serves /simple/PROJECT/ and /files/NAME. Each knob is a list used up one request at a time, or a switch."""

    daemon_threads = True

    def __init__(self, files: dict[str, bytes]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files = files
        self.promised = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
        self.json = True
        self.ranges = True
        self.password: str | None = None
        self.redirect: str | None = None
        """Where files really are."""
        self.statuses: list[int] = []
        """Answers to the next requests for files, in place of the file."""
        self.index_status = 200
        self.page: bytes | None = None
        """What the index answers, in place of the truth."""
        self.drops: list[int] = []
        """The next answers end after so many bytes."""
        self.stalls: list[float] = []
        """Seconds that the next answers hang after their first half."""
        self.drip = 0.0
        """Seconds between pieces of 64 KiB."""
        self.asked: list[tuple[str, str | None, str | None]] = []
        """(path, Range, Authorization) of each request."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def file_requests(self) -> list[str | None]:
        """The Range of each request for a file."""
        return [wanted for path, wanted, _ in self.asked if path.startswith("/files/")]


class _Handler(BaseHTTPRequestHandler):
    server: IndexServer

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""

    def do_GET(self) -> None:
        self.server.asked.append((self.path, self.headers["Range"], self.headers["Authorization"]))
        try:
            if self.path.startswith("/simple/"):
                self._index(self.path.split("/")[2])
            else:
                self._file(self.path.removeprefix("/files/"))
        except OSError:
            return  # the client went away

    def _index(self, project: str) -> None:
        server = self.server
        expected = base64.b64encode((server.password or "").encode()).decode()
        if server.password and self.headers["Authorization"] != f"Basic {expected}":
            self.send_error(401)
            return
        names = [name for name in server.files if name.startswith(project.replace("-", "_") + "-")]
        if server.index_status != 200 or not names:
            self.send_error(404 if server.index_status == 200 else server.index_status)
            return
        if server.json and "json" in self.headers["Accept"]:
            files = [
                {"url": f"../../files/{n}", "hashes": {"sha256": server.promised[n]} if server.promised[n] else {}}
                for n in names
            ]
            kind, page = (
                "application/vnd.pypi.simple.v1+json",
                json.dumps({"meta": {}, "name": project, "files": files}),
            )
        else:
            hashed = [f"{n}#sha256={server.promised[n]}" if server.promised[n] else n for n in names]
            links = "".join(f'<a href="../../files/{link}">{link}</a><br>' for link in hashed)
            kind, page = "text/html; charset=utf-8", f"<!DOCTYPE html><html><body>{links}</body></html>"
        raw = page.encode() if server.page is None else server.page
        self._head(200, {"Content-Type": kind}, len(raw))
        self.wfile.write(raw)

    def _file(self, name: str) -> None:
        server = self.server
        if server.redirect:
            self._head(302, {"Location": f"{server.redirect}/files/{name}", "Content-Length": "0"})
            return
        if server.statuses:
            self.send_error(server.statuses.pop(0))
            return
        if name not in server.files:
            self.send_error(404)
            return
        content, start = server.files[name], 0
        wanted = re.fullmatch(r"bytes=(\d+)-", self.headers["Range"] or "")
        if wanted and server.ranges:
            start = int(wanted[1])
            if start >= len(content):
                self._head(416, {"Content-Range": f"bytes */{len(content)}", "Content-Length": "0"})
                return
            self._head(206, {"Content-Range": f"bytes {start}-{len(content) - 1}/{len(content)}"}, len(content) - start)
        else:
            self._head(200, {}, len(content))
        self._body(content[start:])

    def _body(self, content: bytes) -> None:
        server = self.server
        if server.drops:
            content = content[: server.drops.pop(0)]
        if server.stalls:
            half = len(content) // 2
            self.wfile.write(content[:half])
            time.sleep(server.stalls.pop(0))
            content = content[half:]
        for at in range(0, len(content), 65536):
            self.wfile.write(content[at : at + 65536])
            time.sleep(server.drip)

    def _head(self, status: int, headers: dict[str, str], length: int | None = None) -> None:
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key, value)
        if length is not None:
            self.send_header("Content-Length", str(length))
        self.end_headers()


@contextmanager
def serving(files: dict[str, bytes]) -> Iterator[IndexServer]:
    with IndexServer(files) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
