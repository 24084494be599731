"""``python -m onceward.coordinator.ops`` is ``onceward``."""

from onceward.coordinator.ops.cli import main

if __name__ == "__main__":
    main()
