"""Requests that are refused before a page runs, and the headers of every response.

    a foreign Host       a name of another site that resolves to this machine (DNS rebinding) gets no page
    a foreign Origin     another site's form changes nothing, whatever cookies the browser adds
    a long body          is not read

A page may load the console's own files and nothing else: no inline script or style, no frame around it, no form to
another site. Responses are not stored. `Referrer-Policy` is ``same-origin``, not ``no-referrer``: with the latter
browsers send ``Origin: null`` with a form even to its own site, and it could not be checked.
`Strict-Transport-Security` is left out on purpose: it would apply to every port of the host.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Collection
from typing import Final
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

MOST_BODY_BYTES: Final = 1 << 20
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
_HEADERS: Final = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}
_STOPPING: Final = (
    "The console is being stopped. Whether a form was carried out is not known: look before you send it again.\n"
)
_HARMLESS: Final = frozenset({"GET", "HEAD"})


class Guard:
    """Wraps the whole application. ``hosts``: the names under which browsers reach it, besides IP addresses."""

    def __init__(self, app: ASGIApp, *, hosts: Collection[str]) -> None:
        self._app = app
        self._hosts = frozenset(name.lower().rstrip(".") for name in hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        refusal = self._refusal(scope["method"], Headers(scope=scope))

        is_begun = False

        async def send_with_headers(message: Message) -> None:
            nonlocal is_begun
            is_begun = True
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers[name] = value
                headers.setdefault("cache-control", "no-store")
            await send(message)

        app = self._app if refusal is None else refusal
        try:
            await app(scope, receive, send_with_headers)
        except asyncio.CancelledError:  # the console stops, and waits for nobody any longer
            if not is_begun:
                await PlainTextResponse(_STOPPING, 503)(scope, receive, send_with_headers)

    def _refusal(self, method: str, headers: Headers) -> PlainTextResponse | None:
        host = headers.get("host", "")
        if not is_known_host(host, self._hosts):
            return PlainTextResponse(
                f"This console does not serve the host {host[:200]!r}. If it should, start it with "
                f"--allowed-hosts {_name_of(host)[:200]!r}.\n",
                421,
            )
        if method in _HARMLESS:
            return None
        if method != "POST":
            return PlainTextResponse("Only GET, HEAD and POST are allowed.\n", 405, {"allow": "GET, HEAD, POST"})
        if not is_same_site(headers, host):
            return PlainTextResponse("This form was sent by another site. Nothing was changed.\n", 403)
        length = headers.get("content-length", "")
        if not length.isdecimal() or int(length) > MOST_BODY_BYTES:
            return PlainTextResponse(f"A form needs a Content-Length of at most {MOST_BODY_BYTES:,} bytes.\n", 413)
        return None


def is_known_host(host: str, names: Collection[str]) -> bool:
    """Whether the header ``Host`` names this console: one of ``names``, or an IP address, which DNS rebinding cannot
    use."""
    name = _name_of(host)
    if name in names:
        return True
    try:
        ipaddress.ip_address(name[1:-1] if name.startswith("[") and name.endswith("]") else name)
    except ValueError:
        return False
    return True


def is_same_site(headers: Headers, host: str) -> bool:
    """Whether a page of this console sent the form, according to the browser's headers. A client that is not a browser
    sends none of them, and has nobody's cookies to abuse."""
    if headers.get("sec-fetch-site", "same-origin") not in {"same-origin", "none"}:
        return False
    origin = headers.get("origin")
    return origin is None or urlsplit(origin).netloc.lower() == host.lower()


def _name_of(host: str) -> str:
    """Without the port."""
    name, colon, port = host.lower().rpartition(":")
    if not colon or not port.isdecimal() or (":" in name and not name.endswith("]")):
        name = host.lower()
    return name.rstrip(".")
