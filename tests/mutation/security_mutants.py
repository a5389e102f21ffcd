"""Mutants of who comes in and what they may do. See `mutants`."""

from __future__ import annotations

from typing import Final

from tests.mutation.harness import Mutant

_ACCESS: Final = ("tests/unit/security/test_access_list.py",)
_AUTHORIZER: Final = ("tests/unit/security/test_authorizer.py",)
_CREDENTIALS: Final = ("tests/unit/security/test_credentials.py",)
_RECORDS: Final = ("tests/unit/security/test_records.py",)
_AUTHENTICATION: Final = ("tests/unit/server/test_authentication.py",)
_QUOTAS: Final = ("tests/unit/security/test_quotas.py",)
_QUOTAS_OF_A_BROKER: Final = ("tests/integration/security/test_quotas.py",)
_STREAMS: Final = ("tests/unit/services/test_rights_of_streams.py",)

SECURITY: Final = (
    Mutant(
        name="denial_does_not_count_first",
        file="broker_runtime/security/access_list.py",
        old='        if any(acl.permission == "Deny" and acl.operation in (operation, "All") for acl in concerned):\n',
        new="        if False:\n",
        breaks="An ACL that denies counts before any that allows.",
        tests=_ACCESS,
    ),
    Mutant(
        name="prefix_is_compared_the_other_way",
        file="broker_runtime/security/access_list.py",
        old="if name.startswith(acl.name))",
        new="if acl.name.startswith(name))",
        breaks="A prefixed ACL is about names that begin with its own.",
        tests=_ACCESS,
    ),
    Mutant(
        name="answer_is_remembered_without_the_host",
        file="broker_runtime/security/authorizer.py",
        old="        key = (caller.principal, caller.host, operation, resource_type, name)\n",
        new='        key = (caller.principal, "", operation, resource_type, name)\n',
        breaks="An ACL may allow something from one host alone.",
        tests=_AUTHORIZER,
    ),
    Mutant(
        name="old_access_list_is_remembered",
        file="broker_runtime/security/authorizer.py",
        old="        if known is not now or len(answers) > _MOST_REMEMBERED:\n",
        new="        if len(answers) > _MOST_REMEMBERED:\n",
        breaks="A change of ACLs is in force as soon as it is read.",
        tests=_AUTHORIZER,
    ),
    Mutant(
        name="password_of_a_changed_user_is_remembered",
        file="broker_runtime/security/credentials.py",
        old="        if found is None or found[0] != kept:\n",
        new="        if found is None:\n",
        breaks="A password that was changed counts no more.",
        tests=_CREDENTIALS,
    ),
    Mutant(
        name="token_has_no_end",
        file="broker_runtime/security/credentials.py",
        old="        if end_ms <= self._now_ms() or not",
        new="        if not",
        breaks="A token ends.",
        tests=_CREDENTIALS,
    ),
    Mutant(
        name="token_survives_its_user",
        file="broker_runtime/security/credentials.py",
        old=" or not self.is_current(principal, credential):\n",
        new=":\n",
        breaks="A token ends with its user, and with that user's password.",
        tests=_CREDENTIALS,
    ),
    Mutant(
        name="damaged_record_is_an_empty_one",
        file="broker_runtime/security/records.py",
        old='            event(_logger, "read security records", level=logging.ERROR, znode=path, error=error)\n'
        "            return None\n",
        new="            return empty\n",
        breaks="Damage takes no denial away.",
        tests=_RECORDS,
    ),
    Mutant(
        name="acls_are_not_checked_by_brokers",
        file="broker_runtime/security/records.py",
        old="            check_acl(acl)\n",
        new="            pass\n",
        breaks="An ACL that could mean nothing is refused.",
        tests=_RECORDS,
    ),
    Mutant(
        name="several_headers_are_taken",
        file="broker_runtime/server/authentication.py",
        old="        if len(given) != 1:\n",
        new="        if not given:\n",
        breaks="Two proofs in one call prove nothing: proxies and brokers may take different ones.",
        tests=_AUTHENTICATION,
    ),
    Mutant(
        name="name_that_no_rule_maps_is_somebody",
        file="broker_runtime/server/authentication.py",
        old="        if not principal:\n",
        new="        if False:\n",
        breaks="A certificate's name that no rule makes a principal of is nobody's.",
        tests=_AUTHENTICATION,
    ),
    Mutant(
        name="transactional_id_is_not_asked_about",
        file="broker_runtime/services/produce.py",
        old='                self._authorizer.require(caller, "Write", "TransactionalId", name)\n',
        new="                pass\n",
        breaks="Nobody puts frames into another's transaction.",
        tests=_STREAMS,
    ),
    Mutant(
        name="read_goes_on_after_the_right_is_withdrawn",
        file="broker_runtime/services/read.py",
        old='            self._authorizer.require(caller, "Read", "Topic", plan.partition.topic)',
        new="            pass",
        breaks="A right that is withdrawn is missed at the next piece.",
        tests=_STREAMS,
    ),
    Mutant(
        name="plain_schema_is_for_everybody",
        file="broker_runtime/services/plain.py",
        old='        `TopicAuthorizationError`."""\n'
        '        self._authorizer.require(caller, "Describe", "Topic", topic)\n',
        new='        `TopicAuthorizationError`."""\n',
        breaks="A topic's columns are for those who may describe it.",
        tests=_STREAMS,
    ),
    Mutant(
        name="fetch_of_consumers_is_not_asked_about",
        file="broker_runtime/services/fetch.py",
        old='                    self._authorizer.require(caller, "Read", "Topic", each.topic)\n',
        new="                    pass\n",
        breaks="Records are for those who may read the topic.",
        tests=_STREAMS,
    ),
    Mutant(
        name="hidden_topics_are_refused_differently",
        file="broker_runtime/services/authorization.py",
        old="        for name in dict.fromkeys(request.topics or ()):\n",
        new="        for name in dict.fromkeys(topic.name for topic in response.topics):\n",
        breaks="A name gets the same answer whether the topic exists or not.",
        tests=("tests/unit/services/test_authorization.py",),
    ),
    Mutant(
        name="default_of_users_counts_before_a_client_id",
        file="broker_runtime/security/quotas.py",
        old="            ((None, client_id), of_id),\n            ((None, DEFAULT), of_id),\n",
        new="            ((None, DEFAULT), of_id),\n            ((None, client_id), of_id),\n",
        breaks="The most specific quota counts.",
        tests=_QUOTAS,
    ),
    Mutant(
        name="clients_of_a_user_have_a_quota_each",
        file="broker_runtime/security/quotas.py",
        old="            ((user, None), of_user),\n",
        new="            ((user, None), both),\n",
        breaks="All clients of a user share its quota.",
        tests=_QUOTAS,
    ),
    Mutant(
        name="new_stream_owes_nothing",
        file="broker_runtime/security/quotas.py",
        old="                self._note_debt(limit, rate, _ms(self._quotas.clock))\n",
        new="                pass\n",
        breaks="Nobody escapes a quota by another stream.",
        tests=_QUOTAS,
    ),
    Mutant(
        name="old_quotas_are_kept",
        file="broker_runtime/security/quotas.py",
        old="        if table is not self._table:\n",
        new="        if self._table is None:\n",
        breaks="A change of quotas is in force as soon as it is read.",
        tests=_QUOTAS,
    ),
    Mutant(
        name="debt_is_never_forgiven",
        file="broker_runtime/security/quotas.py",
        old="RateLimit(value * unit, most_debt_s=LONGEST_WAIT_S)",
        new="RateLimit(value * unit)",
        breaks="Nobody waits longer for a request than its client would.",
        tests=_QUOTAS,
    ),
    Mutant(
        name="brokers_have_quotas",
        file="broker_runtime/server/flight.py",
        old="        return UNLIMITED if caller.is_broker else self._services.quotas.of(",
        new="        return self._services.quotas.of(",
        breaks="Followers are never slowed.",
        tests=_QUOTAS_OF_A_BROKER,
    ),
    Mutant(
        name="streams_that_ended_still_count",
        file="broker_runtime/security/quotas.py",
        old="                self._open[client] -= 1\n",
        new="                pass\n",
        breaks="When a stream ends there is room for another.",
        tests=_QUOTAS,
    ),
    Mutant(
        name="produced_bytes_are_not_counted",
        file="broker_runtime/server/produce_stream.py",
        old="        self._stream.allowance.spend(PRODUCER_BYTE_RATE, size_bytes)\n",
        new="",
        breaks="Producers are kept to their quota.",
        tests=_QUOTAS_OF_A_BROKER,
    ),
    Mutant(
        name="reads_do_not_wait",
        file="broker_runtime/services/read.py",
        old="            allowance.wait()  # with nothing in hand\n",
        new="",
        breaks="Readers of ranges are kept to their quota.",
        tests=_QUOTAS_OF_A_BROKER,
    ),
    Mutant(
        name="held_back_producer_is_not_shown_life",
        file="broker_runtime/server/produce_stream.py",
        old="allowance.wait(self._show_alive, holding_bytes=size_bytes)",
        new="allowance.wait()",
        breaks="A client that is held back knows that the broker lives.",
        tests=_QUOTAS_OF_A_BROKER,
    ),
    Mutant(
        name="action_is_not_charged",
        file="broker_runtime/server/flight.py",
        old="            opening.allowance = allowance\n",
        new="            pass\n",
        breaks="Actions are kept to their share of the processor.",
        tests=_QUOTAS_OF_A_BROKER,
    ),
)
