"""Kafka's protocol over kept sockets, for the data path of executors. Needs nothing but confluent-kafka's errors.

encoding.py      the types of the protocol, to and from bytes
requests.py      a request, and the versions of it that this code speaks
metadata.py      Metadata: where brokers and leaders are
settings.py      which of librdkafka's settings this code follows, and their values
sasl.py          PLAIN and SCRAM
connection.py    one established connection
opening.py       opens one: TCP, TLS, versions, credentials
brokers.py       the connections to all brokers of a cluster, and who leads what
coordinators.py  who coordinates a group or a transactional id, and requests to it
choice.py        whether a client of our own can be used
errors.py        what goes wrong, as confluent-kafka's errors
"""
