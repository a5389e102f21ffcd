"""``python -m broker_runtime --config broker.toml``: runs a broker. Arrow's memory is bounded before it is imported."""

from broker_runtime.broker_process import main

if __name__ == "__main__":
    main()
