"""A TCP relay that can misbehave as links do: swallow what the server says, cut without a word, or never answer at
all.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading


class Relay:
    """Relays a port of the loopback to `target` (None: accepts and stays silent)."""

    def __init__(self, target: int | None) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._sockets: list[socket.socket] = []
        self._silent: set[int] = set()
        self._frozen: set[int] = set()
        self._is_closed = False
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Relay:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def swallow_answers(self) -> None:
        """From now on the links that exist lose what the server sends, without closing; new links work."""
        self._silent |= {id(s) for s in self._sockets}

    def freeze(self) -> None:
        """From now on the links that exist carry nothing in either direction, without closing."""
        self._frozen |= {id(s) for s in self._sockets}

    def cut(self) -> None:
        """Reset all links that exist, as a crash or a lost radio would."""
        for s in self._sockets:
            with contextlib.suppress(OSError):
                s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            with contextlib.suppress(OSError):
                s.shutdown(socket.SHUT_RDWR)
            s.close()
        self._sockets.clear()

    def close(self) -> None:
        self._is_closed = True
        with contextlib.suppress(OSError):  # wakes the thread that accepts
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()

    def _accept(self) -> None:
        while not self._is_closed:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self._sockets.append(client)
            if self._target is None:
                continue
            try:
                server = socket.create_connection(("127.0.0.1", self._target))
            except OSError:
                client.close()
                continue
            self._sockets.append(server)
            for source, sink in ((client, server), (server, client)):
                threading.Thread(target=self._pump, args=(source, sink), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if id(source) in self._frozen:
                    continue
                if id(source) in self._silent and id(sink) in self._silent and self._is_server(source):
                    continue
                sink.sendall(data)
        for s in (source, sink):
            with contextlib.suppress(OSError):
                s.shutdown(socket.SHUT_RDWR)

    def _is_server(self, s: socket.socket) -> bool:
        try:
            return bool(s.getpeername()[1] == self._target)
        except OSError:
            return False
