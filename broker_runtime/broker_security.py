"""A broker's listeners, who is asked for what there, and how it reaches other brokers: created here and connected.

Rule: as in `broker_services`, nothing is decided here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from broker_runtime.contract.flight import BROKER_HEADER
from broker_runtime.contract.security import Access, PemFiles, SecurityProtocol
from broker_runtime.contract.settings import Address, BrokerSettings
from broker_runtime.meters import Meters
from broker_runtime.security.authorizer import ALLOW_ALL, AclAuthorizer, Authorizer
from broker_runtime.security.certificate_names import parse_mapping_rules
from broker_runtime.security.credentials import KnownCredentials
from broker_runtime.security.openid import OpenIdTokens
from broker_runtime.security.quotas import Quotas
from broker_runtime.security.records import SecurityRecords
from broker_runtime.server.authentication import Authenticator
from broker_runtime.server.flight import ListenerPlan
from broker_runtime.services.caller import Caller
from broker_runtime.services.security import SecurityService
from broker_runtime.zookeeper.session import ZooKeeperClient
from broker_runtime.zookeeper.znodes import Endpoint


class BrokerSecurity:
    """Of one broker."""

    def __init__(self, settings: BrokerSettings, *, wall_ms: Callable[[], int], meters: Meters) -> None:
        """Raises `InvalidConfigError` for rules or certificates that are not right."""
        self._settings = settings
        self._wall_ms = wall_ms
        self._meters = meters
        self._map_name = parse_mapping_rules(settings.ssl_principal_mapping_rules)
        self.openid = OpenIdTokens(settings) if settings.sasl_oauthbearer_jwks_endpoint_url is not None else None
        self.tls = _pem_files(settings)
        if self.tls is not None:
            self.tls.check()

    def access(self, secret: Callable[[], str]) -> Access:
        """How other brokers are reached. ``secret``: of this broker's present registration, "" without one."""
        broker_id = self._settings.broker_id
        protocol = SecurityProtocol(self._settings.security_protocol_of(self._settings.inter_broker_listener))

        def proof() -> Sequence[tuple[str, str]]:
            return [(BROKER_HEADER, f"{broker_id}:{secret()}")]

        return Access(tls=self.tls if protocol.uses_tls else None, credentials=proof)

    def endpoints(self, ports: Mapping[str, int]) -> list[Endpoint]:
        """Where clients reach the listeners, that of other brokers first. ``ports``: by name, those that are used."""
        settings = self._settings
        advertised = {each.name: each.address for each in settings.advertised_listeners or ()}
        found = []
        for listener in settings.listeners:
            at = advertised.get(listener.name, listener.address)
            protocol = settings.security_protocol_of(listener.name)
            port = at.port or ports[listener.name]
            found.append(Endpoint(name=listener.name, security_protocol=protocol, host=at.host, port=port))
        return sorted(found, key=lambda each: each.name != settings.inter_broker_listener)

    def connect(self, client: ZooKeeperClient) -> None:
        """Reads what ZooKeeper keeps. Raises `ZooKeeperUnavailableError`."""
        self.records = SecurityRecords(client)
        self.records.read()
        self.credentials = KnownCredentials(
            lambda: self.records.users,
            lambda: self.records.token_key,
            now_ms=self._wall_ms,
            foreign=None if self.openid is None else self.openid.proof,
        )
        self.quotas = Quotas(lambda: self.records.quota_table, meters=self._meters)
        self.service = SecurityService(self.records, self.credentials, now_ms=self._wall_ms)

    def is_current(self, caller: Caller) -> bool:
        """Whether what the caller proved itself with still counts."""
        return self.credentials.is_current(caller.principal, caller.credential, caller.expires_ms)

    def step_openid(self) -> float:
        """Fetches the provider's keys. To be called regularly, where there is one."""
        assert self.openid is not None
        return self.openid.step()

    @property
    def authorizer(self) -> Authorizer:
        """Whether somebody may do something."""
        if self._settings.authorizer_class_name == "none":
            return ALLOW_ALL
        return AclAuthorizer(
            lambda: self.records.access_list, super_users=self._settings.super_users or (), meters=self._meters
        )

    def plans(self, ports: Mapping[str, int]) -> Sequence[ListenerPlan]:
        """The listeners to serve on, at these ports."""
        settings = self._settings
        plans = []
        for listener in settings.listeners:
            protocol = SecurityProtocol(settings.security_protocol_of(listener.name))
            authenticator = Authenticator(
                listener.name,
                protocol,
                asks_for_certificates=settings.asks_for_certificates(listener.name),
                map_name=self._map_name,
                credentials=self.credentials,
                meters=self._meters,
            )
            address = Address(listener.address.host, ports[listener.name])
            tls = self.tls if protocol.uses_tls else None
            plans.append(ListenerPlan(address=address, authenticator=authenticator, tls=tls))
        return plans


def _pem_files(settings: BrokerSettings) -> PemFiles | None:
    if settings.ssl_certfile is None and settings.ssl_cafile is None:
        return None
    return PemFiles(ca=settings.ssl_cafile, certificate=settings.ssl_certfile, key=settings.ssl_keyfile)
