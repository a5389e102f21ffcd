"""Users, and who may do what. Shown only: `pylog acl` and `pylog user` change them."""

from __future__ import annotations

from broker_runtime.contract.acls import Acl
from pyspark_log.console.visit import Page, Visit, ask, portion


def access(visit: Visit) -> Page:
    """The ACLs, those whose principal or resource is searched for, and the users with passwords."""
    admin = visit.connection.admin
    acls, users = ask(admin.describe_acls), ask(admin.list_users)
    wanted = visit.query.get("q", "").strip().lower()
    rows: list[Acl] = [
        each for each in acls.value or () if wanted in each.principal.lower() or wanted in each.name.lower()
    ]
    return Page(
        template="access.html",
        title="Users and ACLs",
        section="/access",
        values={
            "shown": portion(rows, visit.number("page", 1, least=1), 100),
            "total": len(acls.value or ()),
            "acls_why": acls.why,
            "users": users.value or (),
            "users_why": users.why,
            "wanted": visit.query.get("q", "").strip(),
        },
    )
