"""Publisher: publishes the results and events of a user's program to a broker, as the daemon does.

`Publisher.open` checks the arguments and assembles the daemon's parts: `publishing.MqttPublisher` for the broker, the
outbox for events, and an encoder for each camera. These parts keep `put` from waiting for the network, and events from
being lost.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType, UnionType
from typing import Any, Literal

import edge_sdk
from edge_sdk.bundle.bundle import Bundle
from edge_sdk.config.load import broker_config_of, mqtt_settings_of, outbox_settings_of, read_secret
from edge_sdk.config.schema import BrokerConfig
from edge_sdk.core.errors import OutputError, UsageError
from edge_sdk.core.frame import Result
from edge_sdk.core.protocols import Event
from edge_sdk.messages.encoder import EventEncoder, ResultEncoder
from edge_sdk.messages.schema import Identity, check_name
from edge_sdk.outbox.event import OutboxSettings, folder_error
from edge_sdk.outbox.outbox import EventOutbox
from edge_sdk.publishing.publisher import MqttPublisher, NameLock, PublisherStats
from edge_sdk.publishing.settings import MqttSettings
from edge_sdk.publishing.tls import ExpiredError, check_credentials

_OPENING_S = 60.0  # longest wait until the file of events is read; a small board takes long for a full one


class Publisher:
    """A `Sink` and an `EventSink` of all cameras of one device, made by `open`.

    Events may be put by any thread, the results of one camera by one thread at a time.
    """

    def __init__(
        self,
        publisher: MqttPublisher,
        events: EventOutbox,
        encoders: Mapping[str, ResultEncoder],
        identity: Identity,
        name: NameLock,
    ) -> None:
        self._publisher, self._events, self._identity, self._name = publisher, events, identity, name
        self._streams = {camera: publisher.stream(camera, encoder) for camera, encoder in encoders.items()}
        self._event_encoders = {camera: EventEncoder.beside(encoder, camera) for camera, encoder in encoders.items()}
        self._is_closed = False

    @classmethod
    def open(
        cls,
        url: str,
        *,
        device: str | None = None,
        site: str | None = None,
        cameras: Mapping[str, Bundle] | None = None,
        outbox: str | os.PathLike[str] | Mapping[str, object] | None = None,
        password_file: str | os.PathLike[str] | None = None,
        password_env: str | None = None,
        ca_file: str | os.PathLike[str] | None = None,
        cert_file: str | os.PathLike[str] | None = None,
        key_file: str | os.PathLike[str] | None = None,
        key_password_file: str | os.PathLike[str] | None = None,
        prefix: str | None = None,
        qos: Literal[0, 1] | None = None,
        protocol: Literal["5", "3.1.1"] | None = None,
        publish: Mapping[str, object] | None = None,
    ) -> Publisher:
        """Begin to publish. An absent or refusing broker is no error, because the publisher tries again for ever.

        What is not named here is as in the tables of a configuration file, docs/config.md.

        Args:
            url: `mqtt[s]://[user@]host[:port]` or `ws[s]://[user@]host[:port][/path]`, without a password.
            device: a level of every topic, and whose events the file holds: of no other program, nor of `edge-sdk run`.
                The host's name by default.
            site: a level of every topic; `default` by default.
            cameras: the bundle that answers for each camera whose results are put, by the name that its frames bear;
                `model.bundle` of a model of one's own choice. Cameras of which there are events alone need none.
            outbox: the folder where events wait on disk, or the table `[outbox]`; by default that of `edge-sdk run`.
            password_file: its first line is the password of the URL's user.
            password_env: or the name of the variable that holds it.
            ca_file: PEM file of the authorities to trust instead of the system's.
            cert_file: PEM file of this device's own certificate, for a broker that wants one.
            key_file: PEM file of its private key, where it does not stand in `cert_file`.
            key_password_file: its first line is the password of an encrypted private key.
            prefix: first levels of every topic; `edge/v1` by default.
            qos: of results; 1: acknowledged, perhaps twice. 0 by default.
            protocol: version of MQTT; 5 by default, and 3.1.1 where the broker knows no 5.
            publish: the table `[publish]`: rate, QoS and expiry of results and of events.

        Raises:
            ConfigError: an argument that cannot be used; a password that cannot be read.
            UsageError: a certificate or a key that cannot be used, an impossible name, no bundle, no such folder.
            OutputError: the file of events cannot be used at present, or another program uses it.
            PublishError: another program on this machine publishes as this device there.
            BundleError: the bundle's labels changed since it was opened.
        """
        mqtt = {
            "url": url,
            "password_file": password_file,
            "password_env": password_env,
            "ca_file": ca_file,
            "cert_file": cert_file,
            "key_file": key_file,
            "key_password_file": key_password_file,
            "prefix": prefix,
            "qos": qos,
            "protocol": protocol,
        }
        tables = {
            "device": _given({"name": device, "site": site}),
            "mqtt": _given(mqtt),
            "outbox": outbox if isinstance(outbox, Mapping) else _given({"folder": outbox}),
            "publish": publish,
        }
        config = broker_config_of(_given(tables))
        settings, waiting = _read_settings(config), outbox_settings_of(config.outbox)
        identity = Identity(settings.device)
        encoders = {camera: _make_encoder(camera, bundle, identity) for camera, bundle in (cameras or {}).items()}
        path, troubles = _make_file(waiting, settings), dict[str, str]()
        with contextlib.ExitStack() as undone:
            name = NameLock(settings)
            undone.callback(name.close)
            events = EventOutbox(waiting, path, identity.boot_id)
            events.listen(troubles.__setitem__)
            undone.callback(events.close)
            # A program that waits for commits must learn at once that there will be none.
            if not events.wait_committed(_OPENING_S) or not events.is_durable:
                silent = f"{path}: this disk did not answer within {_OPENING_S:.0f} s; look after it"
                line = troubles.get("outbox_disk") or silent
                raise OutputError(line.removeprefix("events wait in memory only: "))
            versions = {"edge-sdk": edge_sdk.__version__}
            publisher = MqttPublisher(settings, identity, versions=versions, events=events)
            undone.pop_all()
        return cls(publisher, events, encoders, identity, name)

    def __enter__(self) -> Publisher:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.close()

    def put(self, value: Result | Event, /) -> None:
        """Queue a result or an event; never wait for a disk or a network, or raise their errors.

        Raises:
            UsageError: a result of a camera that was not named to `open`; an event of one with an impossible name; what
                is neither; or the publisher is closed.
        """
        if isinstance(value, Event):
            self.put_event(value)
            return
        self._check(value, Result, "a result of a model or an Event")
        camera = value.frame.camera
        stream = self._streams.get(camera)
        if stream is None:
            raise UsageError(
                f"there is a result of camera {camera!r}, expected one of those named to Publisher.open "
                f"({', '.join(map(repr, self._streams)) or 'none'}); cameras={{{camera!r}: model.bundle}} names it"
            )
        stream.put(value)

    def put_event(self, event: Event, /) -> int | None:
        """Queue one event of the camera that it names, and keep it until the broker has it; never wait.

        Returns:
            Its number among the camera's events, which go on over restarts; None where it is held, as `max_per_s` says.

        Raises:
            UsageError: the camera's name is impossible, it is no event, or the publisher is closed.
        """
        self._check(event, Event, "an Event")
        encoder = self._event_encoders.get(event.camera)
        if encoder is None:
            encoder = self._event_encoders.setdefault(event.camera, EventEncoder(self._identity, event.camera))
        return self._publisher.put_event(event.camera, lambda seq: encoder.encode(event, seq))

    def wait_committed(self, timeout_s: float) -> bool:
        """Wait until every event that was put before is safe: on disk or at the broker.

        Events that `max_per_s` holds back are not waited for.

        Returns:
            False where that takes longer than so many seconds, as on a disk that takes nothing; or where some of what
            was put since this thread asked last was lost before it was on disk: `stats().events.lost` says why.
        """
        return self._events.wait_committed(timeout_s)

    def stats(self) -> PublisherStats:
        """Return the counts of results and events so far."""
        return self._publisher.stats()

    def close(self, timeout_s: float = 5.0) -> None:
        """Send queued messages as far as the time allows, publish `offline`, disconnect; may be called twice.

        Events that could not be sent are on disk, and go out when a publisher of the same device is opened again.

        Args:
            timeout_s: time limit in seconds; with a dead broker it returns sooner, with a slow disk up to 3 s later.
        """
        self._is_closed = True
        self._publisher.close(timeout_s)
        self._name.close()

    def _check(self, value: object, kind: type | UnionType, expected: str) -> None:
        if self._is_closed:
            raise UsageError("this publisher is closed, and takes nothing more; put before close(), or open another")
        if not isinstance(value, kind):
            raise UsageError(f"got a value of type {type(value).__name__}, expected {expected}")


def _read_settings(config: BrokerConfig) -> MqttSettings:
    secrets = [
        read_secret(config.mqtt, "mqtt", what, of)
        for what, of in (("the MQTT password", ""), ("the private key's password", "key_"))
    ]
    settings = mqtt_settings_of(config.device, config.mqtt, config.publish, *secrets)
    with contextlib.suppress(ExpiredError):  # the publisher uses a renewed certificate as soon as it is there
        check_credentials(settings)
    return settings


def _make_encoder(camera: str, bundle: Bundle, identity: Identity) -> ResultEncoder:
    check_name("camera", camera)
    if not isinstance(bundle, Bundle):
        raise UsageError(f"camera {camera!r}: expected a Bundle, got {bundle!r}; Bundle.open(path) opens one")
    return ResultEncoder.for_bundle(bundle, identity)


def _make_file(settings: OutboxSettings, broker: MqttSettings) -> Path:
    """Create the file where events wait, and return its path."""
    path = settings.path_of(broker.site, broker.device)
    if settings.folder is not None and (want := folder_error(settings.folder)):
        raise UsageError(f"outbox: {want}")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.touch(mode=0o600)  # an outbox opens at once what is there, and else with the first event
    except OSError as cause:
        raise OutputError(f"{path}: events cannot wait there: {cause.strerror or cause}") from cause
    return path


def _given(table: Mapping[str, object]) -> dict[str, Any]:
    return {key: value for key, value in table.items() if value is not None}
