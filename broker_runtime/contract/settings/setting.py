"""`Setting`: what is said about a setting where it is defined, and how its values are checked and shown."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

from broker_runtime.contract.errors import InvalidConfigError
from broker_runtime.contract.settings.kinds import PARSERS, Kind, show


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting. ``default`` is in the kind's own unit (bytes, ms), or text that is parsed.

    Choices are read in any case; ``aliases`` are other words for them. ``unlimited``: -1 is allowed as well and means
    "no limit". ``kafka``: Kafka's default, where ours differs.
    """

    kind: Kind
    default: object = None
    _: KW_ONLY
    doc: str
    minimum: int | None = None
    maximum: int | None = None
    unlimited: bool = False
    aliases: tuple[tuple[str, str], ...] = ()
    kafka: str | None = None
    # From the dataclass field that this annotates: its name, the words of its `Literal`, and whether a value must be
    # given, which is so where there is no default and the field's type has no None.
    keyword: str = ""
    choices: tuple[str, ...] = ()
    required: bool = False

    @property
    def name(self) -> str:
        """The name as users write it: the field's, with ``.`` for ``_``."""
        return self.keyword.replace("_", ".")

    @property
    def allowed(self) -> str:
        """What values are allowed, for the reference and for errors."""
        if self.choices:
            text = ", ".join(self.choices)
            return f"{text}, or a callable" if self.kind is Kind.CHOICE_OR_CALLABLE else text
        if self.minimum is None or self.maximum is None:
            return self.kind.value
        bounds = f"{show(self.kind, self.minimum)} to {show(self.kind, self.maximum)}"
        return f"{bounds}, or -1 (no limit)" if self.unlimited else bounds

    def parse(self, value: object) -> object:
        """The value in the kind's own unit; raises `InvalidConfigError` naming setting, value and what is allowed."""
        try:
            parsed = PARSERS[self.kind](value)
        except ValueError as error:
            raise self._refused(value, str(error)) from None
        if self.choices and not callable(parsed):
            text = str(parsed).lower()
            text = dict(self.aliases).get(text, text)
            chosen = [choice for choice in self.choices if choice.lower() == text]
            if not chosen:
                raise self._refused(value, f"one of {self.allowed}")
            return chosen[0]
        if isinstance(parsed, int) and self.minimum is not None and self.maximum is not None:
            if self.unlimited and parsed == -1:
                return parsed
            if not self.minimum <= parsed <= self.maximum:
                raise self._refused(value, self.allowed)
        return parsed

    def show(self, value: object) -> str:
        """The value as a user would type it."""
        return show(self.kind, value)

    @property
    def sentence(self) -> str:
        """What the setting does, and Kafka's default where ours differs."""
        return self.doc if self.kafka is None else f"{self.doc} (Kafka: {self.kafka})"

    def _refused(self, value: object, allowed: str) -> InvalidConfigError:
        shown = "[hidden]" if self.kind is Kind.SECRET else repr(value)
        return InvalidConfigError(f"{self.name}={shown}: must be {allowed}")
