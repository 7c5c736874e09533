"""Clients that leave in ways that are easily overlooked: what they asked for must end."""

import json

from attacks.harness import LIMIT, MiB, attack, close, connect, send
from attacks.http_memory import post
from server import wait_until


@attack(growth=LIMIT + 48 * MiB)
def sends_ahead_and_leaves(fleet, full, outcomes):
    """More than 64 KiB sent ahead of an answer, then the connection is closed."""
    body = b'{"model":"default","prompt":"a","max_tokens":1500,"ignore_eos":true}'
    before = fleet.total("tandem_requests_total", outcome="cancelled")
    clients = []
    for _ in range(20):
        client = connect(fleet.http)
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


@attack(growth=LIMIT)
def leaves_calls_of_many_prompts(fleet, full, outcomes):
    """Each prompt that ends says that the whole call is to end; it must end once."""
    calls, prompts, rounds = 4, 256, 20 if full else 4
    body = json.dumps({"model": "default", "prompt": [[20 + i] for i in range(prompts)], "max_tokens": 500,
                       "ignore_eos": True}).encode()
    for _ in range(rounds):
        clients = [connect(fleet.http) for _ in range(calls)]
        for client in clients:
            send(client, post(len(body)) + body)
        wait_until(lambda: fleet.total("tandem_requests_in_flight") >= calls * prompts, 30, "they run")
        close(clients)
        wait_until(lambda: fleet.total("tandem_requests_in_flight") < prompts, 30, "they are cancelled")
    outcomes["cancelled"] = rounds * calls * prompts
    yield
