"""Connections of the page end by themselves."""

import asyncio

import uvicorn
from uvicorn.server import ServerState

from onceward.watch.web.connections import bounded


async def _silent(longest_s: float) -> bytes:
    """What a client gets that connects and sends nothing."""
    config = uvicorn.Config(lambda: None, http="h11", log_config=None)
    config.load()
    make = bounded(4, longest_s)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(
        lambda: make(config=config, server_state=ServerState(), app_state={}), "127.0.0.1", 0
    )
    async with server:
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        try:
            return await asyncio.wait_for(reader.read(), 60)
        finally:
            writer.close()


def test_a_connection_ends_whatever_its_peer_does() -> None:
    assert asyncio.run(_silent(0.1)) == b""
