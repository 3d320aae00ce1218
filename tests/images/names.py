"""A name server for one name, as small as they come."""

import socket
import struct
import threading

NAME = "seed.watchdog.test"
# Nobody else's: port 53 must be free.
ADDRESS = "127.53.53.53"
A_RECORD = 1


class NameServer:
    """Answers that the name is 127.0.0.1, and that there is nothing else. A context."""

    def __enter__(self):
        self.asked = 0
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind((ADDRESS, 53))
        # So that it notices the end.
        self._socket.settimeout(0.2)
        self._ended = False
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._ended = True
        self._thread.join()
        self._socket.close()

    def _serve(self):
        question = b"".join(bytes([len(part)]) + part.encode() for part in NAME.split(".")) + b"\0"
        while not self._ended:
            try:
                query, sender = self._socket.recvfrom(512)
            except TimeoutError:
                continue
            asked = query[12:]
            found = asked.lower().startswith(question)
            (kind,) = struct.unpack("!H", asked[len(question) : len(question) + 2]) if found else (0,)
            self.asked += found
            answer = b"\xc0\x0c" + struct.pack("!HHIH", A_RECORD, 1, 60, 4) + bytes([127, 0, 0, 1])
            answers = [answer] if kind == A_RECORD else []
            # A response, recursion available; NXDOMAIN for other names.
            flags = 0x8180 | (0 if found else 3)
            end = asked.index(b"\0") + 5
            head = query[:2] + struct.pack("!HHHHH", flags, 1, len(answers), 0, 0)
            self._socket.sendto(head + asked[:end] + b"".join(answers), sender)
