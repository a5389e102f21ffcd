"""Settings: each is defined once, and the checks, the defaults, the reference and the clients' keywords follow.

kinds        what values there are: sizes, durations, addresses … and how they are read and shown
setting      `Setting`: what is said about a setting where it is defined
definitions  THE list: a dataclass per scope, whose fields are the settings; what follows from it
resolution   `resolve(scope, config, keywords)` → the scope's frozen dataclass; a broker's settings from TOML
"""

from broker_runtime.contract.settings.definitions import (
    BOOTSTRAP_VARIABLE,
    SCOPES,
    AdminKeywords,
    AdminSettings,
    BrokerSettings,
    ConsumerKeywords,
    ConsumerSettings,
    ProducerKeywords,
    ProducerSettings,
    Scope,
    TopicSettings,
    find_setting,
    reference_table,
    settings_of,
)
from broker_runtime.contract.settings.kinds import (
    Address,
    Listener,
    Secret,
    parse_address,
    parse_addresses,
    parse_duration,
    parse_listeners,
    parse_size,
)
from broker_runtime.contract.settings.resolution import (
    TRANSACTIONAL_ID_RULE,
    flatten,
    is_transactional_id,
    load_broker_settings,
    parse_given,
    resolve,
)
from broker_runtime.contract.settings.setting import Setting

__all__ = [
    "resolve", "parse_given", "load_broker_settings", "flatten",
    "BrokerSettings", "TopicSettings", "ProducerSettings", "ConsumerSettings", "AdminSettings",
    "ProducerKeywords", "ConsumerKeywords", "AdminKeywords",
    "Scope", "SCOPES", "Setting", "find_setting", "settings_of", "reference_table", "BOOTSTRAP_VARIABLE",
    "Address", "Listener", "Secret",
    "parse_address", "parse_addresses", "parse_duration", "parse_listeners", "parse_size",
    "TRANSACTIONAL_ID_RULE", "is_transactional_id",
]  # fmt: skip
