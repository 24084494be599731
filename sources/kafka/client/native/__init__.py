"""A consumer of our own: Fetch over kept sockets (connections/sockets), records by onceward-native.

consumer.py   NativeConsumer: what to fetch, and from whom
queues.py     its queues, one for each partition
questions.py  what it asks beside the records
partition.py  one partition while it is read
pieces.py     the records of a partition in one answer
records.py    records as Arrow columns
fetching.py   Fetch, to and from bytes
offsets.py    ListOffsets, to and from bytes
meanings.py   what each error code means for a reader
settings.py   how much is fetched
"""
