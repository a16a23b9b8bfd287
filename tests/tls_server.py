"""An HTTPS server for one test, which leaves no connection behind, whoever is at its other end."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web


@asynccontextmanager
async def serving(app: web.Application, context: ssl.SSLContext) -> AsyncIterator[int]:
    """Serves an app until the block ends; its port."""
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
        yield int(runner.addresses[0][1])
    finally:
        server = runner.server
        transports = [connection.transport for connection in server.connections] if server else []
        await runner.cleanup()
        # A connection with TLS is closed only once its peer says so too, and the test's loop does not wait for that.
        for transport in transports:
            if transport is not None:
                transport.abort()
        await asyncio.sleep(0)
