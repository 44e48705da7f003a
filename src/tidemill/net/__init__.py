"""Sockets, memory and turns for any protocol.

``listener`` accepts connections, ``handshake`` begins those with TLS, and ``link`` moves bytes
between a socket and a protocol's ``Session``. ``budget`` limits the memory of requests over all
connections, ``responses`` that of responses, ``outgoing`` sends them, and ``tls`` makes TLS
contexts. This folder imports no protocol and no engine.
"""
