"""What comes before the pages: who may ask, how much, how often, how long, and for which addresses at all."""

import asyncio
import logging
import re
import time
from base64 import b64decode
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, MutableMapping
from dataclasses import dataclass, field
from hashlib import sha256
from hmac import compare_digest
from typing import Any
from urllib.parse import urlsplit

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

LOOPBACK = ("127.0.0.1", "localhost", "::1")
# All that the pages use. Gradio's files, uploads, proxies, streams and open calls are not among it.
READ = re.compile(
    r"/|/config|/theme\.css|/favicon\.ico|/manifest\.json|/(assets|static|svelte)/[\w./@-]+"
    r"|/gradio_api/(startup-events|app_id|info|queue/data|heartbeat/\w+)/?"
)
WRITE = re.compile(r"/gradio_api/(queue/join|cancel|reset)/?")
HEADERS = {
    # The page may ask nobody but this server, whatever a library would like to.
    "content-security-policy": "default-src 'self' data: blob:; script-src 'self' 'unsafe-inline' 'unsafe-eval' blob:; "
    "style-src 'self' 'unsafe-inline'; frame-ancestors 'none'; form-action 'self'; base-uri 'self'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
}


@dataclass(frozen=True)
class Limits:
    """What one client may do.

    A request is of `size` bytes and arrives within `seconds`, `together` of them at once from one address and twice as
    many from all; `rate` requests a second are allowed to one address, `burst` of them at once.
    """

    size: int = 14_000_000
    seconds: float = 30
    together: int = 16
    rate: float = 40
    burst: int = 120


@dataclass
class Bucket:
    """Requests that an address still has; it fills up again as time goes by.

    >>> bucket = Bucket(rate=1, burst=2, now=0)
    >>> [bucket.take(at) for at in (0, 0, 0, 1)]
    [True, True, False, True]
    """

    rate: float
    burst: float
    now: float
    left: float = field(init=False)

    def __post_init__(self) -> None:
        self.left = self.burst

    def take(self, now: float) -> bool:
        """Take one, if there is one."""
        self.left, self.now = min(self.burst, self.left + self.rate * (now - self.now)), now
        if self.left < 1:
            return False
        self.left -= 1
        return True


class RefusedError(Exception):
    """A request that is not answered: its status, and a line for the client."""

    def __init__(self, status: int, line: str) -> None:
        super().__init__(line)
        self.status, self.line = status, line


class AccessMiddleware:
    """An ASGI application in front of another; nothing that goes wrong behind it is told to the client.

    With `auth`, "user:password" of everyone who may come in, every address asks for them. With `hosts`, only requests
    to those names are answered, so that no other site's name can be pointed at this server.
    """

    def __init__(
        self, app: App, *, auth: Collection[str] = (), hosts: Collection[str] = (), limits: Limits | None = None
    ) -> None:
        self.app, self.hosts, self.limits = app, hosts, limits or Limits()
        self.auth = [_digest(each.encode()) for each in auth]
        self.requests: dict[str, Bucket] = {}
        self.failures: dict[str, Bucket] = {}
        self.arriving: Counter[str] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request; starting and stopping are passed on."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":  # the pages use no sockets
            return
        began = False

        async def answer(message: Message) -> None:
            nonlocal began
            if message["type"] == "http.response.start":
                began = True
                known = {name for name, _ in message.get("headers", [])}
                extra = [(name.encode(), text.encode()) for name, text in HEADERS.items() if name.encode() not in known]
                message = {**message, "headers": [*message.get("headers", []), *extra]}
            await send(message)

        try:
            self._inspect(scope)
            if scope["method"] == "POST":
                receive = await self._whole(_client(scope), receive)
            await self.app(scope, receive, answer)
        except RefusedError as refused:
            await _say(answer, refused.status, refused.line)
        except Exception:
            logging.getLogger(__name__).exception("a request failed: %s %s", scope["method"], scope["path"])
            if not began:
                await _say(answer, 500, "Something went wrong here. The server goes on.")

    def _inspect(self, scope: Scope) -> None:
        headers = {name.decode("latin-1").lower(): text.decode("latin-1") for name, text in scope["headers"]}
        host = headers.get("host", "")
        if self.hosts and urlsplit(f"//{host}").hostname not in self.hosts:
            raise RefusedError(403, "This name is not served here.")
        client = _client(scope)
        if self.auth and not self._known(headers.get("authorization", ""), client):
            raise RefusedError(401, "Expected a name and a password.")
        path, write = scope["path"], scope["method"] == "POST"
        pattern = WRITE if write else READ
        if scope["method"] not in ("GET", "HEAD", "POST") or not pattern.fullmatch(path) or ".." in path:
            raise RefusedError(404, "There is nothing here.")
        if write:
            origin = headers.get("origin")
            if origin not in (None, "null") and urlsplit(origin).netloc != host:
                raise RefusedError(403, "Expected a request of this server's own page.")
            if not _bucket(self.requests, client, self.limits.rate, self.limits.burst).take(time.monotonic()):
                raise RefusedError(429, "Too many requests. Wait a moment.")

    def _known(self, given: str, client: str) -> bool:
        """Whether name and password are those of somebody; guessing is slow."""
        kind, _, secret = given.partition(" ")
        if kind.lower() != "basic":
            return False
        try:
            digest = _digest(b64decode(secret, validate=True))
        except ValueError:
            digest = b""
        if sum(compare_digest(digest, each) for each in self.auth):  # all of them: time tells nothing
            return True
        if not _bucket(self.failures, client, 0.5, 10).take(time.monotonic()):
            raise RefusedError(429, "Too many wrong passwords. Wait a moment.")
        return False

    async def _whole(self, client: str, receive: Receive) -> Receive:
        """Wait for all of a request, but not for too much, nor too long, nor for too many at once."""
        parts, size, more = [], 0, True
        self.arriving[client] += 1
        try:
            if max(2 * self.arriving[client], self.arriving.total()) > 2 * self.limits.together:
                raise RefusedError(429, "Too many requests at once. Wait a moment.")
            async with asyncio.timeout(self.limits.seconds):
                while more:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise RefusedError(400, "The request ended too early.")
                    parts.append(message.get("body", b""))
                    size, more = size + len(parts[-1]), message.get("more_body", False)
                    if size > self.limits.size:
                        raise RefusedError(413, f"Expected at most {self.limits.size // 1000:,} kB, got more.")
        except TimeoutError as slow:
            raise RefusedError(408, f"Expected the request within {self.limits.seconds:g} seconds.") from slow
        finally:
            self.arriving[client] -= 1
            self.arriving += Counter()  # forgets who has none
        whole = [{"type": "http.request", "body": b"".join(parts), "more_body": False}]

        async def replay() -> Message:
            return whole.pop() if whole else await receive()

        return replay


def _bucket(buckets: dict[str, Bucket], client: str, rate: float, burst: float) -> Bucket:
    now = time.monotonic()
    if len(buckets) > 10_000:  # who has not asked for long is as good as new
        for name in [name for name, each in buckets.items() if (now - each.now) * rate >= burst]:
            del buckets[name]
    return buckets.setdefault(client, Bucket(rate, burst, now))


def _client(scope: Scope) -> str:
    return str((scope.get("client") or ("unknown", 0))[0])


def _digest(secret: bytes) -> bytes:
    return sha256(secret).digest()


async def _say(send: Send, status: int, line: str) -> None:
    body = line.encode()
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", str(len(body)).encode())]
    if status == 401:
        headers.append((b"www-authenticate", b'Basic realm="torchmcl", charset="UTF-8"'))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
