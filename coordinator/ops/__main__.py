"""``python -m coordinator.ops`` is ``onceward``."""

from coordinator.ops.cli import main

if __name__ == "__main__":
    main()
