"""`pylog console`: a cluster in the browser.

Rule: pages are rendered here, from what an `Admin`, a `Consumer` and a `Producer` with the user's own rights return. A
GET changes nothing; a change is a form with the session's CSRF token. Pages work without internet access and without
JavaScript, which only refreshes them.

serving          where it listens, who may reach it; uvicorn, in the foreground or beside `pylog up`
app              routes, threads, time limits; an error becomes a page
guard            headers, hosts, cross-site requests: what is refused before a page runs
sessions         who is logged in, for how long; attempts to log in (pure)
connection       one user's `Admin`, consumers and producers; a password becomes a token
visit            what a page is given, and what it returns (plain values)
lag_history      samples of groups' lag, taken while a page shows it (pure)
browsing         records as rows of a table, and a histogram of a column
formats          numbers, sizes and times as people read them (pure)
pages/           the pages, by subject
"""

from __future__ import annotations

from typing import Final

DEFAULT_PORT: Final = 9190
"""The default port. It is defined here because the command line shows it before it loads anything else. (Brokers of
`pylog up` have 9192 and the ports after it.)"""
