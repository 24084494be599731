"""A worker process does not share its cached objects with its forks: their copies lack the threads."""

import subprocess
import sys

FORKING = """
import os
from onceward.connections.per_process import PerProcess

class Producer:
    def __del__(self):
        os.write(1, f"released in {'the parent' if os.getpid() == parent else 'the fork'};".encode())

parent = os.getpid()
kept = PerProcess()
kept.mine()["a"] = Producer()
child = os.fork()
if child == 0:
    os.write(1, f"fork {sorted(kept.mine())};".encode())
    kept.mine()["b"] = "its own"
    os.write(1, f"fork {sorted(kept.mine())};".encode())
    os._exit(0)
os.waitpid(child, 0)
os.write(1, f"parent {sorted(kept.mine())};".encode())
del kept.mine()["a"]
"""


def test_a_fork_begins_with_none_and_never_releases_its_parents() -> None:
    ran = subprocess.run([sys.executable, "-c", FORKING], capture_output=True, text=True, check=True, timeout=60)
    assert ran.stdout == "fork [];fork ['b'];parent ['a'];released in the parent;"
