"""librdkafka without a Python object for each record: what the reader's and the writer's clients have in common.

library.py   the functions and structures of its C interface
client.py    making a client, its log, and calls that many of its functions need
"""
