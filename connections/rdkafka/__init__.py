"""librdkafka without a Python object per record: the parts that the reader's and the writer's clients share.

library.py   the functions and structures of its C interface
client.py    creating a client, its log, and calls that its functions share
"""
