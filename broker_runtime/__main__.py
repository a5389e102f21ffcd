"""``python -m broker_runtime --config broker.toml``: runs a broker. Arrow's memory is bounded before it is imported."""

import sys

from broker_runtime.broker_process import main


class _WithoutPandas:
    """An importer for which pandas is not installed. pyarrow would import it at its first conversion of a value; a
    broker never needs it, and it costs 0.2 s of processor and 40 MB."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:
        if name == "pandas":
            raise ModuleNotFoundError("a broker does without pandas", name=name)


if __name__ == "__main__":
    sys.meta_path.insert(0, _WithoutPandas)
    main()
