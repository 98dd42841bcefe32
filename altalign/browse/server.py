"""The server of the page: on 127.0.0.1 alone, for whoever has its token; it reads a run and writes nothing.

Every request has `?token=…`, names this host and this port, and comes from this origin or from none. What it answers is
in docs/guides/browse.md.
"""

import secrets
import shlex
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import orjson
import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from altalign import __version__, storage
from altalign.audit.run_folder import RunFolder
from altalign.browse import FOLDER, pair, what_if
from altalign.browse.filters import of_select
from altalign.browse.pair import Pictures
from altalign.browse.pairs import Pairs, opened
from altalign.browse.search import Search, searching
from altalign.data.reasons import KEPT
from altalign.errors import AltalignError, UsageError, one_line
from altalign.pages import frame

HOST = "127.0.0.1"
ROWS_AT_MOST = 200
BODY_BYTES_AT_MOST = 16_000_000  # of a request: marked keys, or a picture
_SHOWN = ("n", "key", "caption", "image_url", "stage", "reason", "words", "width", "height")
_NOTE = "Of what extract drops, the run has the broken records and a sample of each other reason."
_NONE = "The run kept no dropped rows: `[audit] keep_dropped = false`."
_FROM_HERE = b"img-src data:", b"img-src 'self' data:; connect-src 'self'"

_Asked = dict[str, Any]


class Guard:
    """Refuses who has no token, another name of this host, or a page of another origin."""

    def __init__(self, app: ASGIApp, token: str, port: int) -> None:
        self._app, self._token = app, token
        ending = "" if port == 80 else f":{port}"  # browsers leave that one out
        self._hosts = {f"{HOST}{ending}", f"localhost{ending}"}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] == "http":
            request = Request(scope)
            host, origin = request.headers.get("host", ""), request.headers.get("origin")
            site = request.headers.get("sec-fetch-site", "none")
            is_ours = host in self._hosts and origin in (None, f"http://{host}") and site in ("none", "same-origin")
            has_token = secrets.compare_digest(request.query_params.get("token", "").encode(), self._token.encode())
            if not (is_ours and has_token):
                refused = _error("not allowed here: open the address that `altalign browse` printed", 403)
                await refused(scope, receive, send)
                return
        with suppress(Exception):  # it has been answered
            await self._app(scope, receive, send)


class Pages:
    """What is answered of a run."""

    def __init__(self, pairs: Pairs, search: Search) -> None:
        self._pairs, self._pictures, self._search = pairs, Pictures(pairs), search
        self._notes = search.notes
        self._manifest = pairs.run.path("manifest.json")
        self._stamp = storage.stamp(self._manifest)

    def page(self, _request: Request) -> Response:
        """The page itself."""
        html = frame.rendered(
            FOLDER, "browse.html", styles=("page.css", "browse.css"), scripts=("cards.js", "browse.js")
        )
        return Response(html.replace(*_FROM_HERE, 1), media_type="text/html", headers={"Cache-Control": "no-store"})

    def about(self, _asked: _Asked) -> _Asked:
        """The run: its pairs, facets and thresholds, and how far it is read."""
        pairs, run = self._pairs, self._pairs.run
        facets = pairs.shown_facets()
        return {
            "folder": run.folder,
            "generator": f"altalign {__version__}",
            "pairs": pairs.total,
            "read": pairs.read,
            "is_read": pairs.is_read,
            "trouble": pairs.trouble or self._search.trouble,
            "has_changed": not storage.exists(self._manifest) or storage.stamp(self._manifest) != self._stamp,
            "notes": [_NOTE if run.config.audit.keep_dropped else _NONE, *self._notes],
            "facets": [{"name": each.name, "label": each.label, "kind": each.kind} for each in facets],
            "sorts": [{"name": each.name, "label": each.label} for each in facets if each.kind == "range"],
            "rules": what_if.rules(pairs),
            "searches": [
                {"name": each.name, "model": each.model, "has_texts": each.has_texts}
                for each in self._search.embeddings.values()
            ],
            "search_read": self._search.read,
        }

    def count(self, asked: _Asked) -> _Asked:
        """How many pairs and images match."""
        return self._pairs.count(_filter(asked))

    def facet(self, asked: _Asked) -> _Asked:
        """Pairs by the values of a facet."""
        return self._pairs.facet(_filter(asked), asked.get("name"))

    def rows(self, asked: _Asked) -> _Asked:
        """A window of the pairs that match; of a search, of the nearest ones."""
        first, count = _whole(asked, "first", 0), min(_whole(asked, "count", 60), ROWS_AT_MOST)
        if (search := asked.get("search")) is None:
            numbers = self._pairs.matching(_filter(asked), asked.get("sort", ""))
            return {"total": len(numbers), "rows": self._rows(numbers[first : first + count].tolist())}
        nearest = self._search.nearest(self._pairs.facets.where(_filter(asked)), search)
        rows = self._rows(nearest.numbers[first : first + count].tolist())
        cosines = zip(rows, nearest.values[first : first + count].tolist(), strict=True)
        found = [{**row, "cosine": cosine} for row, cosine in cosines]
        return {"total": len(nearest.numbers), "rows": found, "by": nearest.by}

    def what_if(self, asked: _Asked) -> _Asked:
        """What other thresholds would do."""
        found = what_if.what_if(self._pairs, _filter(asked), asked.get("thresholds") or {})
        samples = {name: self._rows(numbers) for name, numbers in found["samples"].items()}
        return {**found, "samples": samples}

    def decide(self, asked: _Asked) -> _Asked:
        """The commands that act on marked pairs, or on all that match."""
        pairs, run, condition = self._pairs, shlex.quote(self._pairs.run.folder), ""
        if (filtered := asked.get("filter")) is not None:
            where = pairs.facets.where(filtered)
            columns = [name for name, kind in pairs.columns.types.items() if str(kind) != "bool"]
            condition = of_select(filtered, pairs.facets, columns)
        else:
            keys = asked.get("keys") or []
            where = pairs.facets.where({"values": {"key": keys}}) if keys else "false"
        if asked.get("what") == "remove":
            commands = [f"altalign remove {run} --keys keys.txt"]
        else:
            commands = [f"altalign select {run} NEW --list keys.txt"]
            commands += [f"altalign select {run} NEW --where {shlex.quote(condition)}"] if condition else []
        sql = f"SELECT count(*), count(*) FILTER (reason = '{KEPT}') FROM pairs WHERE {where}"
        (found, kept), *_ = pairs.query(sql)
        shown = sql if filtered is not None else ""
        return {"pairs": found, "kept": kept, "commands": commands, "where": condition, "sql": shown}

    def pair(self, request: Request) -> Response:
        """All that is known of a pair."""
        return _json(pair.details(self._pairs, request.path_params["number"]))

    def picture(self, request: Request) -> Response:
        """A small picture of a pair."""
        data = self._pictures.of(request.path_params["number"])
        if data is None:
            return _error("no picture of this pair", 404)
        return Response(data, media_type="image/webp", headers={"Cache-Control": "private, max-age=3600"})

    async def given(self, request: Request) -> Response:
        """Keeps a picture to search by."""
        data = await _body(request)
        if not data:
            return _error(f"give a picture of at most {BODY_BYTES_AT_MOST:,} bytes", 413)
        return _json({"picture": self._search.keep(data)})

    def keys(self, request: Request) -> Response:
        """The keys of the kept pairs that match, one a line; to remove, of the dropped ones too."""
        try:
            asked = orjson.loads(request.query_params.get("filter", "{}"))
        except ValueError:
            raise UsageError("filter: not JSON") from None
        whose = "key IS NOT NULL" if request.query_params.get("what") == "remove" else f"reason = '{KEPT}'"
        where = f"{self._pairs.facets.where(asked)} AND {whose}"
        headers = {"Content-Disposition": 'attachment; filename="keys.txt"'}
        return StreamingResponse(self._keys(where), media_type="text/plain", headers=headers)

    def _keys(self, where: str) -> Iterator[bytes]:
        for keys in self._pairs.batches(f"SELECT key FROM pairs WHERE {where} ORDER BY n"):
            yield "".join(f"{key}\n" for key in keys).encode()

    def _rows(self, numbers: list[int]) -> list[_Asked]:
        nsfw = self._pairs.run.config.image.nsfw.drop_at_or_above
        return [
            {
                **{name: row[name] for name in _SHOWN},
                "has_picture": self._pictures.has(row),
                "is_nsfw": row["nsfw_score"] is not None and row["nsfw_score"] >= nsfw,
            }
            for row in self._pairs.rows(numbers)
        ]

    def routes(self) -> list[Route]:
        """Where each answer is."""
        asked = {"/api/run": self.about, "/api/count": self.count, "/api/facet": self.facet, "/api/rows": self.rows}
        asked |= {"/api/what-if": self.what_if, "/api/decide": self.decide}
        found = {"/": self.page, "/api/pair/{number:int}": self.pair, "/picture/{number:int}": self.picture}
        methods = {path: ["GET"] if path == "/api/run" else ["POST"] for path in asked}
        return [
            Route("/api/picture", self.given, methods=["POST"]),
            *(Route(path, _answering(answer), methods=methods[path]) for path, answer in asked.items()),
            *(Route(path, answer) for path, answer in {**found, "/keys": self.keys}.items()),
        ]


def application(pairs: Pairs, search: Search, token: str, port: int) -> ASGIApp:
    """The server's application, for a port of 127.0.0.1."""

    def failed(_request: Request, error: Exception) -> Response:
        return _error(str(error), 400 if isinstance(error, UsageError) else 500)

    def http(_request: Request, error: Exception) -> Response:
        return _error(error.detail, error.status_code) if isinstance(error, HTTPException) else _error(str(error), 500)

    def broken(_request: Request, error: Exception) -> Response:
        return _error(f"{type(error).__name__}: {one_line(error)}", 500)

    handlers = {AltalignError: failed, HTTPException: http, Exception: broken}
    return Guard(Starlette(routes=Pages(pairs, search).routes(), exception_handlers=handlers), token, port)


@contextmanager
def serving(folder: str, port: int = 0) -> Iterator[str]:
    """Serve the page of a finished run; gives its address, with its token.

    Raises UsageError: the run is not finished, or the port is taken.
    """
    with opened(RunFolder.open(folder)) as pairs, searching(pairs) as search, socket.socket() as listening:
        try:
            listening.bind((HOST, port))
            listening.listen()  # who asks before the server is up waits
        except OSError as error:
            raise UsageError(f"--port {port}: {error.strerror}; give another, or none") from None
        port, token = listening.getsockname()[1], secrets.token_urlsafe(24)
        quiet: dict[str, Any] = {"log_config": None, "access_log": False, "server_header": False, "lifespan": "off"}
        config = uvicorn.Config(application(pairs, search, token, port), **quiet)
        server = uvicorn.Server(config)
        server.config.load()
        thread = threading.Thread(target=server.run, args=([listening],), name="browse", daemon=True)
        thread.start()
        try:
            yield f"http://{HOST}:{port}/?token={token}"
        finally:
            server.should_exit = server.force_exit = True
            thread.join()


def _answering(answer: Callable[[_Asked], _Asked]) -> Callable[[Request], Any]:
    """A route that takes JSON, and gives JSON; the work is done in a thread."""

    async def route(request: Request) -> Response:
        if (body := await _body(request)) is None:
            return _error("too many keys are marked at once; filter instead", 413)
        try:
            asked = orjson.loads(body or b"{}")
        except ValueError:
            return _error("not JSON", 400)
        if not isinstance(asked, dict):
            return _error("no JSON object", 400)
        return _json(await run_in_threadpool(answer, asked))

    return route


async def _body(request: Request) -> bytes | None:
    """The body of a request; None where it is too long."""
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > BODY_BYTES_AT_MOST:
            return None
    return body


def _filter(asked: Mapping[str, Any]) -> Mapping[str, Any]:
    return asked.get("filter") or {}


def _whole(asked: Mapping[str, Any], name: str, default: int) -> int:
    value = asked.get(name, default)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise UsageError(f"{name}: {value!r} is no whole number of 0 or more")
    return value


def _json(value: object) -> Response:
    """JSON; a number that is none becomes null."""
    return Response(orjson.dumps(value), media_type="application/json", headers={"Cache-Control": "no-store"})


def _error(words: str, status: int) -> Response:
    return Response(orjson.dumps({"error": words}), status, media_type="application/json")
