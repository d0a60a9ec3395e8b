"""A Hugging Face hub on the loopback device: what its client asks for, and knobs to misbehave with."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit


class HubServer(ThreadingHTTPServer):
    """Serves one revision of each repository."""

    daemon_threads = True

    def __init__(self, repositories: Mapping[str, Mapping[str, bytes]]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.repositories = {name: dict(files) for name, files in repositories.items()}
        self.revisions = {"main"}
        self.token = ""
        """If set, repositories are shown to those who send it."""
        self.gated = False
        self.down = False
        self.cut: list[int] = []
        """The next files end after so many bytes, one request each."""
        self.asked: list[str] = []
        """Method, path and range of each request."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def commit(self, repo: str) -> str:
        """Changes with the files."""
        digest = hashlib.sha1(usedforsecurity=False)
        for name, content in sorted(self.repositories[repo].items()):
            digest.update(name.encode() + b"\0" + content)
        return digest.hexdigest()


class _Handler(BaseHTTPRequestHandler):
    server: HubServer
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None: ...

    def _reply(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.server.asked.append(f"{self.command} {path} {self.headers.get('Range', '')}".strip())
        if self.server.down:
            return self._reply(503)
        if self.server.gated:
            return self._reply(403, X_Error_Code="GatedRepo")
        api = re.fullmatch(r"/api/models/([^/]+/[^/]+)/(revision|tree)/([^/]+)", path)
        file = re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path)
        found = api or file
        repo = found[1] if found else ""
        refused = self.server.token and self.headers.get("Authorization") != f"Bearer {self.server.token}"
        if repo not in self.server.repositories or refused:
            return self._reply(401, X_Error_Code="RepoNotFound")
        revision = api[3] if api else file[2] if file else ""
        if revision not in self.server.revisions | {self.server.commit(repo)}:
            return self._reply(404, X_Error_Code="RevisionNotFound")
        if api:
            return self._describe(repo, api[2])
        assert file
        return self._file(repo, file[3])

    def _describe(self, repo: str, what: str) -> None:
        files = self.server.repositories[repo]
        if what == "revision":
            value: object = {
                "id": repo, "sha": self.server.commit(repo), "siblings": [{"rfilename": name} for name in files],
            }  # fmt: skip
        else:
            value = [
                {"type": "file", "path": name, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}
                for name, content in files.items()
            ]
        self._reply(200, json.dumps(value).encode(), Content_Type="application/json")

    def _file(self, repo: str, name: str) -> None:
        content = self.server.repositories[repo].get(name)
        if content is None:
            return self._reply(404, X_Error_Code="EntryNotFound")
        headers = {"ETag": f'"{hashlib.sha256(content).hexdigest()}"', "X_Repo_Commit": self.server.commit(repo)}
        if self.command == "HEAD":
            self.send_response(200)
            for key, value in headers.items():
                self.send_header(key.replace("_", "-"), value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            return None
        start = int(found[1]) if (found := re.match(r"bytes=(\d+)-", self.headers.get("Range", ""))) else 0
        body = content[start:]
        if start:
            headers["Content_Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        if not self.server.cut:
            return self._reply(206 if start else 200, body, **headers)
        self.send_response(206 if start else 200)
        for key, value in headers.items():
            self.send_header(key.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: self.server.cut.pop(0)])
        self.wfile.flush()
        self.close_connection = True
        return None


@contextmanager
def hub(repositories: Mapping[str, Mapping[str, bytes]]) -> Iterator[HubServer]:
    """A running server."""
    server = HubServer(repositories)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
