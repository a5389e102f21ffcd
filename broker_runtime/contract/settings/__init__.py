"""Settings: one table of names (`table`) makes the checks, the help, the reference, and one dataclass per scope.

kinds        what values there are: sizes, durations, addresses … and how they are read and shown
table        THE table; `find_setting` refuses unknown names with the nearest known one
resolution   `resolve(scope, config, keywords)` → the scope's frozen dataclass
keywords     the clients' settings as TypedDicts, for typed keyword arguments
reference    the table as markdown and as help
files        a broker's settings from TOML
"""

from broker_runtime.contract.settings.files import flatten, load_broker_settings
from broker_runtime.contract.settings.keywords import AdminKeywords, ConsumerKeywords, ProducerKeywords
from broker_runtime.contract.settings.kinds import Address, parse_address, parse_addresses, parse_duration, parse_size
from broker_runtime.contract.settings.reference import help_text, reference_table
from broker_runtime.contract.settings.resolution import (
    AdminSettings,
    BrokerSettings,
    ConsumerSettings,
    ProducerSettings,
    TopicSettings,
    parse_given,
    resolve,
)
from broker_runtime.contract.settings.table import SCOPES, Scope, Setting, find_setting, settings_of

__all__ = [
    "resolve", "parse_given", "load_broker_settings", "flatten",
    "BrokerSettings", "TopicSettings", "ProducerSettings", "ConsumerSettings", "AdminSettings",
    "ProducerKeywords", "ConsumerKeywords", "AdminKeywords",
    "Scope", "SCOPES", "Setting", "find_setting", "settings_of", "reference_table", "help_text",
    "Address", "parse_address", "parse_addresses", "parse_duration", "parse_size",
]  # fmt: skip
