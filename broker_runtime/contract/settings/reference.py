"""The table of settings as text: README's reference and the command line's help. Generated, never written by hand."""

from __future__ import annotations

from broker_runtime.contract.settings.table import Scope, Setting, settings_of


def reference_table(scope: Scope) -> str:
    """The scope's settings as a markdown table, one row each, ending with a newline."""
    rows = ["| setting | default | allowed | |", "|---|---|---|---|"]
    rows += [
        f"| `{setting.name}` | {_default(setting)} | {setting.allowed} | {_sentence(setting)} |"
        for setting in settings_of(scope).values()
    ]
    return "\n".join(rows) + "\n"


def help_text(scope: Scope) -> str:
    """The scope's settings for a terminal: a line with name, default and what is allowed, then the sentence."""
    lines: list[str] = []
    for setting in settings_of(scope).values():
        default = "required" if setting.required else setting.show(setting.default) or "unset"
        lines += [f"{setting.name}  (default: {default}; allowed: {setting.allowed})", f"    {_sentence(setting)}"]
    return "\n".join(lines).replace("`", "")


def _default(setting: Setting) -> str:
    if setting.required:
        return "required"
    shown = setting.show(setting.default)
    return f"`{shown}`" if shown else ""


def _sentence(setting: Setting) -> str:
    return setting.doc if setting.kafka is None else f"{setting.doc} (Kafka: {setting.kafka})"
