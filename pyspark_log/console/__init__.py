"""`pylog console`: a cluster in the browser.

Rule: pages are made here, of what `Admin`, a `Consumer` and a `Producer` answer, with the rights of who looks. A GET
changes nothing; a change is a form with the session's token. No page needs the internet, and no page needs its script:
that only renews what is shown.

serving          where it listens, for whom; uvicorn, in the foreground or beside `pylog up`
app              routes, threads, time limits; an error becomes a page
guard            headers, hosts, cross-site requests: what is refused before a page is asked
sessions         who is logged in, for how long; attempts to log in (pure)
connection       one user's `Admin`, consumers and producers; a password becomes a token
visit            what a page is given, and what it answers (plain values)
lag_history      how far groups were behind while somebody looked (pure)
browsing         records as rows of a table, and a histogram of a column
formats          numbers, sizes and times as people read them (pure)
pages/           the pages, by subject
"""

from __future__ import annotations

from typing import Final

DEFAULT_PORT: Final = 9190
"""Where it listens, if nothing else is said. It stands here because the command line shows it before it loads anything
else; brokers of `pylog up` have 9192 and the next ones."""
