"""A broker in Python, as a process of its own: `python -m edge_sdk_tools.demo.embedded_broker PORT`.

For machines without mosquitto. amqtt speaks MQTT 3.1.1 only and forgets everything when it ends: right for a demo.
"""

from __future__ import annotations

import asyncio
import signal
import sys

from amqtt.broker import Broker


async def serve(port: int) -> None:
    """Serve on the loopback interface until SIGTERM, SIGINT, or the end of standard input."""
    broker = Broker(
        {
            "listeners": {"default": {"type": "tcp", "bind": f"127.0.0.1:{port}", "max_connections": 16}},
            "plugins": {"amqtt.plugins.authentication.AnonymousAuthPlugin": {"allow_anonymous": True}},
        }
    )
    await broker.start()
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    # Standard input ends when the parent does, however it died; nothing is ever written to it.
    loop.add_reader(sys.stdin, stop.set)
    await stop.wait()
    await broker.shutdown()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1])))
