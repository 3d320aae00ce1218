#!/usr/bin/env python3
"""Follows the verdicts on all shoots and says when one changes: an example of a client in Python.

    watch_verdicts.py ADDRESS [CA CERTIFICATE KEY SERVERNAME]

Without certificates it speaks plaintext. The generated code is in target/clients/python (tests/clients/generate).
"""

import random
import sys
import threading
import time

import grpc
from gardener.watchdog.probe.v1 import probe_pb2, probe_pb2_grpc

# Three heartbeats missed: the stream is dead.
SILENCE_SECONDS = 15


def connect(address, ca=None, certificate=None, key=None, server_name=None):
    """A channel with or without TLS."""
    # A dead connection is noticed without waiting for TCP.
    options = [("grpc.keepalive_time_ms", SILENCE_SECONDS * 1000)]
    if ca is None:
        return grpc.insecure_channel(address, options)
    files = [open(path, "rb").read() for path in (ca, key, certificate)]
    options.append(("grpc.ssl_target_name_override", server_name))
    return grpc.secure_channel(address, grpc.ssl_channel_credentials(*files), options)


class SendTimes:
    """When the messages of one stream were sent, by the clock of this process: the recipe of docs/reference/api.md."""

    def __init__(self):
        self.opened = self.seen = time.monotonic()
        self.first = None
        self.fastest = 0.0

    def sent(self, uptime):
        now = time.monotonic()
        self.first = self.first or (now, uptime, now - self.opened)
        first_arrived, first_uptime, delay = self.first
        late = (now - first_arrived) - (uptime - first_uptime)
        self.fastest = min(self.fastest + (now - self.seen) / 10, late)
        self.seen = now
        return now - max(0.0, late - self.fastest + delay)


def follow(stub, known):
    """One stream, until it ends. `known` holds the latest verdict of every shoot, and outlives streams."""
    snapshot = {}
    send_times = SendTimes()
    stream = stub.WatchVerdicts(probe_pb2.WatchVerdictsRequest())
    for update in alive(stream):
        sent = send_times.sent(seconds(update.position.uptime))
        event = update.WhichOneof("event")
        if event == "upsert":
            # Act on a verdict until then, and no longer.
            verdict = (update.upsert, sent + seconds(update.upsert.valid_for))
            if snapshot is None:
                record(known, *verdict)
            else:
                snapshot[update.upsert.shoot] = verdict
        elif event == "removed" and snapshot is None:
            known.pop(update.removed, None)
            print(f"{update.removed} is gone", flush=True)
        elif event == "snapshot_complete":
            # What is not in a whole snapshot is gone; before this moment nothing may be concluded.
            if update.snapshot_complete.completeness.complete:
                for shoot in known.keys() - snapshot.keys():
                    del known[shoot]
            for verdict in snapshot.values():
                record(known, *verdict)
            snapshot = None
            print(f"complete: {len(known)} shoots", flush=True)


def alive(stream):
    """The messages of a stream, which is given up when it is silent for too long."""
    watch = None
    try:
        while True:
            watch = threading.Timer(SILENCE_SECONDS, stream.cancel)
            watch.start()
            update = next(stream, None)
            watch.cancel()
            if update is None:
                return
            yield update
    finally:
        if watch:
            watch.cancel()


def seconds(duration):
    """Seconds of a protobuf Duration."""
    return duration.ToTimedelta().total_seconds()


def record(known, verdict, valid_until):
    """Keeps a verdict, and prints it if its outcome differs from the last one."""
    before = known.get(verdict.shoot)
    known[verdict.shoot] = verdict
    if before is None or before.outcome != verdict.outcome:
        valid = valid_until - time.monotonic()
        outcome = probe_pb2.Outcome.Name(verdict.outcome)
        print(f"{verdict.shoot} {outcome} (valid for {valid:.0f} s): {verdict.message}", flush=True)


def main():
    known = {}
    pause = 0.5
    with connect(*sys.argv[1:]) as channel:
        stub = probe_pb2_grpc.LeaseProbeServiceStub(channel)
        while True:
            began = time.monotonic()
            try:
                follow(stub, known)
            except grpc.RpcError as error:
                print(f"lost: {error.code().name}: {error.details()}", file=sys.stderr, flush=True)
            # The end of a stream says nothing about shoots: go on with what is known, and come back soon.
            pause = 0.5 if time.monotonic() - began > SILENCE_SECONDS else min(pause * 2, 30)
            time.sleep(random.uniform(0, pause))


if __name__ == "__main__":
    main()
