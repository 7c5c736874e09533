"""Clients that leave in ways that are easily overlooked: what they asked for must end."""

from attacks.harness import LIMIT, MiB, attack, connect, send
from attacks.http_memory import post
from server import wait_until


@attack(growth=LIMIT + 48 * MiB)
def sends_ahead_and_leaves(fleet, full, outcomes):
    """More than 64 KiB sent ahead of an answer, then the connection is closed."""
    body = b'{"model":"default","prompt":"a","max_tokens":1500,"ignore_eos":true}'
    before = fleet.total("tandem_requests_total", outcome="cancelled")
    clients = []
    for _ in range(20):
        client = connect(fleet.http_address)
        client.settimeout(1)
        send(client, post(len(body)) + body)
        send(client, b"x" * MiB)
        clients.append(client)
    wait_until(lambda: fleet.total("tandem_requests_in_flight") >= 20, 30, "they run")
    for client in clients:
        client.close()
    wait_until(lambda: fleet.total("tandem_requests_total", outcome="cancelled") >= before + 20, 30,
               "they are cancelled")
    outcomes["cancelled"] = 20
    yield
