"""SessionCache: loaded models that are not loaded again while somebody may come back to them."""

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
        most: how many models are kept. The least recently used one goes, but never one that is in use, so that there
            may be more for a while.
    """

    def __init__(self, most: int = 3) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._loading: weakref.WeakValueDictionary[_Key, threading.Lock] = weakref.WeakValueDictionary()
        self._loaded: OrderedDict[_Key, Session] = OrderedDict()
        self._handed_out: dict[_Key, weakref.WeakSet[Session]] = {}

    def __len__(self) -> int:
        return len(self._loaded)

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
            with self._lock:
                if key in self._loaded:
                    return self._hand_out(key)
            loaded = Session.open(bundle, chosen)
            with self._lock:
                self._loaded[key], self._handed_out[key] = loaded, weakref.WeakSet()
                return self._hand_out(key)

    def _hand_out(self, key: _Key) -> Session:
        self._loaded.move_to_end(key)
        session = self._loaded[key].twin()
        self._handed_out[key].add(session)
        self._drop_unused()
        return session

    def _drop_unused(self) -> None:
        unused = [key for key in self._loaded if not self._handed_out[key]]
        for key in unused[: max(0, len(self._loaded) - self._most)]:
            del self._loaded[key], self._handed_out[key]
