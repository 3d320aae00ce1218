"""Runs a program in a network namespace of its own, and asks it over each of the families of addresses given.

Usage: ipv6.py v6|dual PROGRAM ARGUMENT...
"""

import fcntl
import socket
import struct
import subprocess
import sys
import time
import urllib.request

SIOCSIFFLAGS, SIOCSIFADDR, IFF_UP = 0x8914, 0x8916, 1
BOUND_SECONDS = 60


def configure_loopback(with_ipv4: bool) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        fcntl.ioctl(control, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", IFF_UP))
        if not with_ipv4:
            nothing = struct.pack("16sH2x4s8x", b"lo", socket.AF_INET, bytes(4))
            fcntl.ioctl(control, SIOCSIFADDR, nothing)


def can_connect(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=5).close()
    except OSError:
        return False
    return True


def main() -> None:
    families, program = sys.argv[1], sys.argv[2:]
    configure_loopback(with_ipv4=families == "dual")
    with subprocess.Popen(program) as process:
        try:
            deadline = time.monotonic() + BOUND_SECONDS
            while not can_connect("::1", 9643):
                assert process.poll() is None, f"it ended with {process.returncode}"
                assert time.monotonic() < deadline, "it does not listen on [::1]:9643"
                time.sleep(0.05)
            hosts = ["[::1]", "127.0.0.1"] if families == "dual" else ["[::1]"]
            for host in hosts:
                with urllib.request.urlopen(f"http://{host}:9643/healthz", timeout=10) as answer:
                    assert answer.read() == b"ok\n"
                assert can_connect(host.strip("[]"), 9645), f"gRPC does not listen on {host}"
            assert can_connect("127.0.0.1", 9643) == (families == "dual")
        finally:
            process.terminate()
        code = process.wait(BOUND_SECONDS)
        assert code == 0, f"it ended with {code}"


if __name__ == "__main__":
    main()
