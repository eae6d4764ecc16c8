"""SessionCache: loaded models that are not loaded again while somebody has them or may come back to them."""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from typing import TypeAlias

from edge_sdk.bundle import Bundle
from edge_sdk.session.session import Session
from edge_sdk.session.settings import SessionSettings

_Key: TypeAlias = tuple[str, str, bool, SessionSettings]


class SessionCache:
    """Hands out sessions on models that it keeps; for several threads, which load different models at the same time.

    Args:
        most: how many models are kept that nobody has; the least recently used one goes. With 0 a model lives as long
            as somebody has it.
    """

    def __init__(self, most: int = 3) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._loading: weakref.WeakValueDictionary[_Key, threading.Lock] = weakref.WeakValueDictionary()
        self._alive: weakref.WeakValueDictionary[_Key, Session] = weakref.WeakValueDictionary()
        self._kept: OrderedDict[_Key, Session] = OrderedDict()

    def __len__(self) -> int:
        return len(self._alive)

    def open(self, bundle: Bundle, settings: SessionSettings | None = None) -> Session:
        """A session of its own on the variant that runs; loaded only if it is not there.

        Args:
            bundle: verified.
            settings: those that the bundle promises by default.

        Raises:
            EdgeError: as `Session.open`; then nothing is kept.
        """
        chosen = settings or SessionSettings.of(bundle.manifest)
        key = (bundle.digest, bundle.manifest.variants[0].file, bundle.signed, chosen)
        with self._lock:
            loading = self._loading.setdefault(key, threading.Lock())
        with loading:  # who wants another model need not wait
            found = self._alive.get(key)
            loaded = found or Session.open(bundle, chosen)
            with self._lock:
                self._alive[key] = loaded
                self._keep(key, loaded)
            return loaded.twin() if found else loaded

    def _keep(self, key: _Key, loaded: Session) -> None:
        self._kept[key] = loaded
        self._kept.move_to_end(key)
        while len(self._kept) > self._most:
            self._kept.popitem(last=False)
