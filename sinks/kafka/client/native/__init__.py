"""Writes record batches by Produce, over kept connections. Needs onceward-native.

producer.py    NativeProducer: one transaction, or records without one
session.py     what is kept from one transaction to the next
outgoing.py    the batches of one partition, until they are confirmed
producing.py   Produce
transacting.py the requests of a transaction
meanings.py    what each error code of Produce means for the slot
columns.py     the sink's columns, as the encoder takes them
settings.py    how it writes, from librdkafka's settings
"""
