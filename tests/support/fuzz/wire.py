"""A network that can be cut: connections to a port of this machine that lead to another one.

After the cut nothing comes through, and nobody is told: as when a cable is pulled.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from types import TracebackType

CHUNK = 1 << 16


class Wire:
    """Listens on `port`; what connects there is connected to port `to`, until `cut()`."""

    def __init__(self, to: int) -> None:
        self._to = to
        self._cut = threading.Event()
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._ends: list[socket.socket] = [self._listening]
        self.port: int = self._listening.getsockname()[1]
        self.carried = 0  # bytes
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Wire:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cut()
        for end in self._ends:
            end.close()

    def cut(self) -> None:
        self._cut.set()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                here, _ = self._listening.accept()
                self._ends.append(here)
                if self._cut.is_set():
                    continue  # It is open, and silent.
                there = socket.create_connection(("127.0.0.1", self._to))
                self._ends.append(there)
                for source, sink in ((here, there), (there, here)):
                    threading.Thread(target=self._carry, args=(source, sink), daemon=True).start()

    def _carry(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while chunk := source.recv(CHUNK):
                if self._cut.is_set():
                    return
                sink.sendall(chunk)
                self.carried += len(chunk)
            sink.shutdown(socket.SHUT_WR)
