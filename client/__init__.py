"""The driver's session with its coordinator."""

import os

# PySpark forks this process to start its JVM. gRPC's fork handlers then start threads in the child, whose descriptors
# are closed before it becomes java: 3 of 100 children died. gRPC reads this variable when it is imported, which is
# after this package; Onceward uses no connection in a forked child.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
