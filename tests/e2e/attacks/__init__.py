"""Attacks on a fleet: each a function of a module here, which `@attack` registers."""

import importlib

MODULES = ("http_memory", "grpc_memory", "leaving", "worker")


def all_attacks():
    from attacks.harness import ATTACKS
    for module in MODULES:
        importlib.import_module(f"attacks.{module}")
    return ATTACKS
