"""The console as an ASGI application: routes, sessions, threads, time limits; an error becomes a page.

Rule: pages are functions that block, so each runs in one of a few threads, with a time limit. An error becomes a page
with one sentence and an HTTP status that fits: no traceback leaves this process.
"""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar
from urllib.parse import parse_qsl

import anyio
import jinja2
from anyio import to_thread
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from broker_runtime.contract.errors import (
    AuthenticationError,
    AuthorizationError,
    GroupIdNotFoundError,
    NonEmptyGroupError,
    NotAPylogBrokerError,
    OptionError,
    PylogError,
    RetriableError,
    SaslAuthenticationError,
    UnknownTopicOrPartitionError,
)
from broker_runtime.contract.events import event
from pyspark_log.console import formats
from pyspark_log.console.connection import Connection
from pyspark_log.console.guard import MOST_BODY_BYTES, Guard
from pyspark_log.console.pages import ACTS, NAVIGATION, VIEWS
from pyspark_log.console.sessions import Attempts, Sessions, is_cookie, new_cookie
from pyspark_log.console.visit import Act, Done, Page, View, Visit

PAGE_LIMIT_S: Final = 20.0
BODY_LIMIT_S: Final = 10.0
_THREADS: Final = 16
_MOST_FIELDS: Final = 20_000
_HERE: Final = Path(__file__).parent
_T = TypeVar("_T")

_logger = logging.getLogger(__name__)


class WaysIn(Protocol):
    """How users get a `Connection`; `connection.Entrance` implements it."""

    @property
    def brokers(self) -> str:
        """The bootstrap servers, for display."""

    @property
    def has_login(self) -> bool:
        """Whether users have to log in."""

    def shared(self) -> Connection:
        """The connection that all users share, without a login."""

    def log_in(self, user: str, password: str) -> Connection:
        """A connection for one user. Raises `SaslAuthenticationError`."""


def make_app(entrance: WaysIn, *, hosts: Collection[str], port: int = 0, is_encrypted: bool = False) -> Guard:
    """The console. ``hosts``: the host names under which browsers reach it. ``port`` is part of the cookie's name,
    because browsers send cookies to all ports of a host."""
    return Guard(_Console(entrance, port, is_encrypted=is_encrypted).app(), hosts=hosts)


@functools.cache
def _templates() -> jinja2.Environment:
    """With what all pages share. Each template is compiled once per process."""
    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_HERE / "templates"),
        autoescape=True,
        auto_reload=False,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(formats.FILTERS)
    made.globals.update(query=formats.query, navigation=NAVIGATION)
    made.globals["m"] = made.get_template("macros.html").module
    return made


class _Console:
    def __init__(self, entrance: WaysIn, port: int, *, is_encrypted: bool) -> None:
        self._entrance = entrance
        self._is_encrypted = is_encrypted
        self._cookie_name = f"__Host-pylog-{port}" if is_encrypted else f"pylog-{port}"
        self._sessions: Sessions[Connection] = Sessions()
        self._attempts = Attempts()
        self._shared = None if entrance.has_login else entrance.shared()
        self._threads = anyio.CapacityLimiter(_THREADS)
        self._templates = _templates()

    def app(self) -> Starlette:
        routes: list[Any] = [
            Route("/login", self._show_login, methods=["GET"]),
            Route("/login", self._log_in, methods=["POST"]),
            Route("/logout", self._log_out, methods=["POST"]),
            Mount("/static", StaticFiles(directory=_HERE / "static"), name="static"),
        ]
        routes += [Route(path, partial(self._show, view), methods=["GET"]) for path, view in VIEWS]
        views = dict(VIEWS)
        for path, act in ACTS:
            back, _, action = path.rpartition("/")
            routes.append(Route(path, partial(self._act, act, views[back], action), methods=["POST"]))
        return Starlette(
            routes=routes,
            lifespan=self._lifespan,
            exception_handlers={HTTPException: self._http_error, Exception: self._defect},
        )

    @asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        yield
        await to_thread.run_sync(self._close)

    def _close(self) -> None:
        self._sessions.close()
        if self._shared is not None:
            self._shared.close()

    # --- pages --------------------------------------------------------------------------------------------------

    async def _show(self, view: View, request: Request) -> Response:

        def show() -> Response:
            connection = self._connection(request)
            if connection is None:
                return self._to_login(request)
            query = _last(request.query_params.multi_items())
            visit = Visit(connection=connection, parts=request.path_params, query=query)
            return self._rendered(request, view(visit), visit)

        return await self._answered(request, show)

    async def _act(self, act: Act, back: View, action: str, request: Request) -> Response:
        """``back``: the page with the form, one path segment up: ``/topics/{topic}`` for ``/topics/{topic}/delete``."""
        form, refusal = await self._form(request)
        if refusal is not None:
            return refusal
        lists: dict[str, list[str]] = {}
        for name, value in form:
            lists.setdefault(name, []).append(value)

        def change() -> Response:
            connection = self._connection(request)
            if connection is None:
                return self._to_login(request)
            visit = Visit(
                connection=connection,
                parts=request.path_params,
                query=_last(request.query_params.multi_items()),
                form=_last(form),
                lists=lists,
            )
            try:
                return self._gone_to(request, act(visit))
            except SaslAuthenticationError:
                raise
            except (PylogError, ValueError) as error:
                said, outcome, status = _sentence(error), _outcome(error, action), _status_of(error)
                again = visit.refused(action, said, outcome)
                try:
                    page = back(again)
                except SaslAuthenticationError:
                    raise
                except (PylogError, ValueError):  # matters less than what became of the form
                    return self._error(request, status, "The form cannot be shown again", f"{outcome} {said}")
                return self._rendered(request, page, again, status=status)

        return await self._answered(request, change)

    async def _answered(self, request: Request, work: Callable[[], Response]) -> Response:
        """The response that ``work`` makes in a thread, or an error page if it fails or takes too long."""
        with anyio.move_on_after(PAGE_LIMIT_S):
            return await self._in_thread(partial(self._with_errors, request, work))
        return self._error(
            request,
            503,
            "This takes too long",
            f"The cluster has not answered within {PAGE_LIMIT_S:g} s.{_not_known(request)}",
        )

    async def _in_thread(self, work: Callable[[], _T]) -> _T:
        return await to_thread.run_sync(work, abandon_on_cancel=True, limiter=self._threads)

    def _with_errors(self, request: Request, work: Callable[[], Response]) -> Response:
        try:
            return work()
        except SaslAuthenticationError as error:
            if not self._entrance.has_login:
                return self._error(request, 502, "The brokers refuse the console's credentials", _sentence(error))
            self._sessions.end(self._cookie(request))
            return self._to_login(request, "The brokers no longer accept this session. Log in again.")
        except (PylogError, ValueError) as error:
            status = _status_of(error)
            return self._error(request, status, _TITLES.get(status, "That cannot be shown"), _sentence(error))
        except Exception as error:  # noqa: BLE001 - a defect becomes a page, and a line of the log
            event(_logger, "show page", path=request.url.path, error=error, level=logging.ERROR, exc_info=error)
            text = f"The console's log has the details.{_not_known(request)}"
            return self._error(request, 500, "This is a bug in pylog", text)

    def _rendered(self, request: Request, page: Page, visit: Visit | None, *, status: int = 200) -> Response:
        is_fragment = _is_fragment(request)
        cookie = self._cookie(request) or new_cookie()
        session = self._sessions.find(cookie, by_hand=False)
        values = {
            **page.values,
            "page": page,
            "is_fragment": is_fragment,
            # Brokers' addresses are not shown to users who have not logged in.
            "brokers_asked": self._entrance.brokers if session is not None or not self._entrance.has_login else "",
            "csrf": self._sessions.csrf_token(cookie),
            "user": session.user if session is not None else "",
            "notice": None if is_fragment else self._sessions.take_notice(cookie),
            "url": _url_of(request, above=bool(visit is not None and visit.failed)),
            "failed": visit.failed if visit is not None else "",
            "error": visit.error if visit is not None else "",
            "outcome": visit.outcome if visit is not None else "",
            "form": visit.form if visit is not None else {},
        }
        template = self._templates.get_template(page.template)
        if is_fragment and "live" in template.blocks:
            text = "".join(template.blocks["live"](template.new_context(values)))
        else:
            text = template.render(values)
        code = max(status, page.status)
        return self._with_cookie(HTMLResponse(text, code, {"vary": "HX-Request"}), request, cookie)

    def _gone_to(self, request: Request, done: Done) -> Response:
        self._sessions.leave_notice(self._cookie(request), done.notice)
        return RedirectResponse(done.path, 303)

    def _error(self, request: Request, status: int, title: str, text: str) -> Response:
        every_s = 5 if status == 503 and request.method == "GET" else 0
        page = Page(template="error.html", title=title, section="", values={"text": text}, every_s=every_s)
        return self._rendered(request, page, None, status=status)

    async def _http_error(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        if request.url.path.startswith("/static/"):
            return Response(status_code=error.status_code)
        what = {404: "There is no such page", 405: "This page does not accept that method"}
        return self._error(request, error.status_code, what.get(error.status_code, error.detail), "")

    async def _defect(self, request: Request, error: Exception) -> Response:
        event(_logger, "answer request", path=request.url.path, error=error, level=logging.ERROR, exc_info=error)
        return self._error(request, 500, "This is a bug in pylog", "The console's log has the details.")

    # --- who is there -------------------------------------------------------------------------------------------

    def _cookie(self, request: Request) -> str:
        value = request.cookies.get(self._cookie_name, "")
        return value if is_cookie(value) else ""

    def _with_cookie(self, response: Response, request: Request, cookie: str) -> Response:
        if cookie != self._cookie(request):
            response.set_cookie(
                self._cookie_name, cookie, path="/", httponly=True, samesite="strict", secure=self._is_encrypted
            )
        return response

    def _connection(self, request: Request) -> Connection | None:
        if self._shared is not None:
            return self._shared
        by_hand = request.headers.get("hx-request") != "true"
        session = self._sessions.find(self._cookie(request), by_hand=by_hand)
        return None if session is None else session.connection

    async def _form(self, request: Request) -> tuple[list[tuple[str, str]], Response | None]:
        """The form's fields, or the response to a form that is not valid or not from a page of this console."""
        body = bytearray()
        try:
            with anyio.move_on_after(BODY_LIMIT_S) as limit:
                async for chunk in request.stream():
                    body += chunk
                    if len(body) > MOST_BODY_BYTES:
                        break
        except ClientDisconnect:
            return [], Response(status_code=400)  # nobody is there to be told
        if limit.cancelled_caught:
            text = f"The form did not arrive completely within {BODY_LIMIT_S:g} s."
            return [], self._error(request, 408, "This takes too long", text)
        if len(body) > MOST_BODY_BYTES:
            text = f"A form has at most {MOST_BODY_BYTES:,} bytes."
            return [], self._error(request, 413, "The form is too large", text)
        if request.headers.get("content-type", "").partition(";")[0].strip() != "application/x-www-form-urlencoded":
            return [], self._error(request, 415, "This is not a form", "")
        try:
            fields = parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=_MOST_FIELDS, errors="strict")
        except ValueError:
            return [], self._error(request, 400, "This is not a form", "It is not UTF-8, or has too many fields.")
        cookie = self._cookie(request)
        given = request.headers.get("x-csrf-token") or _last(fields).get("csrf", "")
        if not cookie or not self._sessions.is_csrf_token(cookie, given):
            text = "It is from another session, or from before the console was restarted. Nothing was changed."
            return [], self._error(request, 403, "This form is no longer valid", text)
        return fields, None

    def _to_login(self, request: Request, notice: str = "") -> Response:
        cookie = self._cookie(request) or new_cookie()
        if notice:
            self._sessions.leave_notice(cookie, notice)
        if request.headers.get("hx-request") == "true":
            return self._with_cookie(Response(status_code=401, headers={"HX-Redirect": "/login"}), request, cookie)
        wanted = _url_of(request) if request.method == "GET" else ""
        target = "/login" + formats.query(next=wanted if wanted != "/" else "")
        return self._with_cookie(RedirectResponse(target, 303), request, cookie)

    async def _show_login(self, request: Request) -> Response:
        if not self._entrance.has_login:
            return RedirectResponse("/", 303)
        return self._login_page(request, request.query_params.get("next", ""))

    def _login_page(
        self, request: Request, wanted: str, error: str = "", name: str = "", status: int = 200
    ) -> Response:
        values = {"next": wanted, "login_error": error, "name": name}
        page = Page(template="login.html", title="Log in", section="", values=values)
        return self._rendered(request, page, None, status=status)

    async def _log_in(self, request: Request) -> Response:
        fields, refusal = await self._form(request)
        if refusal is not None or not self._entrance.has_login:
            return refusal or RedirectResponse("/", 303)
        form = _last(fields)
        name, password, wanted = form.get("user", "").strip(), form.get("password", ""), form.get("next", "")
        address = request.client.host if request.client is not None else ""
        refused = partial(self._login_page, request, wanted, name=name)
        if not name or not password:
            return refused("Enter a user name and a password.", status=400)
        wait_s = self._attempts.wait_s(name, address)
        if wait_s > 0:
            return refused(f"Too many attempts have failed. Try again in {math.ceil(wait_s)} s.", status=429)

        def attempt() -> Connection | None:
            return self._attempts.run(
                partial(self._entrance.log_in, name, password), name, address, is_failure=AuthenticationError
            )

        def log_in() -> Response:
            try:
                connection = attempt()
            except SaslAuthenticationError:
                return refused("Wrong user name or password.", status=401)
            except (PylogError, ValueError) as error:
                return refused(_sentence(error), status=_status_of(error))
            if connection is None:
                return refused("Too many users are logging in. Try again in a moment.", status=429)
            self._sessions.end(self._cookie(request))
            cookie = self._sessions.begin(name, connection)
            event(_logger, "begin session", user=name, client_host=address)
            return self._with_cookie(RedirectResponse(local_path(wanted), 303), request, cookie)

        return await self._answered(request, log_in)

    async def _log_out(self, request: Request) -> Response:
        _, refusal = await self._form(request)
        if refusal is not None:
            return refusal
        await self._in_thread(partial(self._sessions.end, self._cookie(request)))
        cookie = new_cookie()
        self._sessions.leave_notice(cookie, "You are logged out.")
        return self._with_cookie(RedirectResponse("/login", 303), request, cookie)


_NOT_KNOWN: Final = "It is not known whether this was done: check before you try again."
_PARTITION_BY_PARTITION: Final = frozenset({"apply", "elect"})
"""Actions that may have been done in part when they fail."""
_TITLES: Final = {
    400: "That cannot be shown",
    403: "You may not see this",
    404: "Not found",
    502: "The brokers refuse the console's credentials",
    503: "The cluster does not answer",
}


def _not_known(request: Request) -> str:
    """What is added where a form's work was given up."""
    return "" if request.method == "GET" else f" {_NOT_KNOWN}"


def local_path(wanted: str) -> str:
    """Where to go after the login: ``wanted`` if it is a page of this console, else the overview."""
    is_local = wanted.startswith("/") and wanted.isprintable() and "\\" not in wanted and not wanted.startswith("//")
    return wanted if is_local and wanted.isascii() and not wanted.startswith("/log") else "/"


def _is_fragment(request: Request) -> bool:
    """Whether the request only refreshes the live part of a page."""
    return request.headers.get("hx-request") == "true" and request.headers.get("hx-request-type") != "full"


def _url_of(request: Request, *, above: bool = False) -> str:
    """The path and query of the request. ``above``: of the page whose form was sent."""
    raw: bytes = request.scope.get("raw_path", b"/")
    path = raw.decode("latin-1").partition("?")[0]
    if above:
        path = path.rpartition("/")[0]
    return path + (f"?{request.url.query}" if request.url.query else "")


def _status_of(error: Exception) -> int:
    if isinstance(error, UnknownTopicOrPartitionError | GroupIdNotFoundError):
        return 404
    if isinstance(error, AuthorizationError):
        return 403
    if isinstance(error, AuthenticationError):
        return 502
    if isinstance(error, RetriableError | NotAPylogBrokerError | TimeoutError):
        return 503
    return 400


def _outcome(error: Exception, action: str) -> str:
    """Whether a failed action was done, in part or not at all."""
    if isinstance(error, RetriableError | TimeoutError):
        return _NOT_KNOWN
    if action in _PARTITION_BY_PARTITION and not isinstance(error, OptionError | NonEmptyGroupError):
        return "This may have been done in part."
    return "Nothing was changed."


def _sentence(error: Exception) -> str:
    """The error's message as a sentence."""
    text = error.message if isinstance(error, PylogError) else str(error)
    text = text or type(error).__name__
    is_word = text.partition(" ")[0].isalpha()  # and not the name of a setting
    return f"{text[0].upper()}{text[1:]}" if is_word else text


def _last(items: list[tuple[str, str]]) -> dict[str, str]:
    return dict(items)
