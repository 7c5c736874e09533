"""Another host with a link to this one, made of a network namespace."""

import contextlib
import os
import subprocess

import pytest

from fleet import Router, Worker

HERE, THERE = "10.213.77.1", "10.213.77.2"


def on_host(tool, *arguments, there=()):
    """Runs `ip` or `tc`, on the host whose commands begin with `there`."""
    done = subprocess.run([*there, tool, *arguments], capture_output=True, text=True)
    assert done.returncode == 0, f"{tool} {' '.join(arguments)}: {done.stderr}"


@contextlib.contextmanager
def linked_host():
    """A host with one link to this one: (what a command there begins with, our interface, its)."""
    allowed = subprocess.run(["unshare", "--net", "--mount", "true"], capture_output=True, text=True)
    if allowed.returncode != 0:
        pytest.skip(f"no right to make hosts: {allowed.stderr.strip()}")
    ours, theirs = f"td{os.getpid()}a", f"td{os.getpid()}b"
    # Its namespaces, and with them the link, are gone when this process is. UCX reads the
    # interfaces in /sys, which shows those of the namespace that mounted it.
    host = subprocess.Popen(["unshare", "--net", "--mount", "sh", "-c",
                             "mount -t sysfs sysfs /sys && echo up && exec cat"],
                            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert host.stdout.readline() == "up\n"
        # Its root too, since this process's may be a folder of another (chroot).
        there = ("nsenter", f"--target={host.pid}", "--net", "--mount", "--root", "--wd")
        on_host("ip", "link", "add", ours, "type", "veth", "peer", "name", theirs, "netns", str(host.pid))
        on_host("ip", "addr", "add", f"{HERE}/30", "dev", ours)
        on_host("ip", "link", "set", ours, "up")
        on_host("ip", "addr", "add", f"{THERE}/30", "dev", theirs, there=there)
        on_host("ip", "link", "set", theirs, "up", there=there)
        on_host("ip", "link", "set", "lo", "up", there=there)
        yield there, ours, theirs
    finally:
        host.stdin.close()
        host.wait()


@contextlib.contextmanager
def fleet_on_two_hosts(folder, host, transport):
    """A prefill worker there, a decode worker and the router here: (router, prefill, decode)."""
    there, ours, theirs = host

    def worker(role, address, device, prefix=()):
        return Worker(folder, f"{role}-0", f"--role={role}", f"--transport={transport}", f"--ucx-devices={device}",
                      "--insecure-public-listen", address=address, prefix=prefix)
    prefill, decode = worker("prefill", THERE, theirs, there), worker("decode", HERE, ours)
    with prefill, decode, Router(folder, [prefill, decode], "--disaggregate=always") as router:
        yield router, prefill, decode
