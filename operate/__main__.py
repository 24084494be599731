"""``python -m onceward.operate`` is ``onceward``."""

from onceward.operate.cli import main

if __name__ == "__main__":
    main()
