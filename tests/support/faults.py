"""Faults between a device and its broker, each with the line that says it and a way to mend it."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from tests.support.broker import Broker, TlsBroker
from tests.support.certificates import HERE, Authority
from tests.support.subscribers import publishing_to


class Fault(NamedTuple):
    """One that is there."""

    broker: Broker
    reach: dict[str, Any]
    said: str
    mend: Callable[[], object]
    config: dict[str, object] | None = None


def _file_config(broker: TlsBroker, **files: object) -> dict[str, object]:
    return {"url": f"mqtts://localhost:{broker.tls_port}", "ca_file": broker.authority.file, **files}


@contextmanager
def wrong_authority(folder: Path) -> Iterator[Fault]:
    """The file of authorities is another broker's."""
    known = Authority(folder, "known")
    with TlsBroker(_in(folder)) as broker:
        good = broker.authority.file.read_bytes()
        yield Fault(
            broker,
            {**broker.reach, "ca_file": known.file},
            f"by none of the authorities in {known.file}; give its own, ca_file (--mqtt-ca-file)",
            lambda: known.file.write_bytes(good),
            _file_config(broker, ca_file=known.file),
        )


@contextmanager
def expired_certificate(folder: Path) -> Iterator[Fault]:
    """The broker's certificate ended yesterday."""
    authority = Authority(folder)
    shown = authority.issue("broker", HERE, days=(-9, -1))

    def mend() -> None:
        authority.issue("broker", HERE)
        broker.restart()

    with TlsBroker(_in(folder), broker_certificate=shown) as broker:
        yield Fault(
            broker,
            {**broker.reach, "ca_file": authority.file},
            "has expired; renew it at the broker",
            mend,
            _file_config(broker, ca_file=authority.file),
        )


@contextmanager
def expired_certificate_of_ours(folder: Path) -> Iterator[Fault]:
    """The device's did."""
    clients = Authority(folder, "clients")
    issued = clients.issue("pi", days=(-9, -1))
    with TlsBroker(_in(folder), clients_of=clients) as broker:
        yield Fault(
            broker,
            {**broker.reach, **issued._asdict()},
            f"the broker does not take the certificate in {issued.cert_file}",
            lambda: clients.issue("pi"),
        )


@contextmanager
def wrong_password(folder: Path) -> Iterator[Fault]:
    """The broker knows the device by another one."""
    with Broker(_in(folder), users={"camera": "other", "reader": "too"}) as broker:
        # The same user with the right word; mosquitto_passwd has made the file that the broker reads again.
        with Broker(_in(folder, "right"), users={"camera": "right", "reader": "too"}, start=False):
            good = (folder / "right" / "passwords").read_bytes()

        def mend() -> None:
            (folder / "broker" / "passwords").write_bytes(good)
            os.kill(broker.pid, signal.SIGHUP)

        yield Fault(
            broker,
            {"user": "camera", "password": "right"},
            "Not authorized (reason code 135), as 'camera' with the password: give the right user and password, and "
            "its ACL must let this device write edge/v1/default/pi/status",
            mend,
        )


@contextmanager
def no_descriptor_left(folder: Path) -> Iterator[Fault]:
    """The process can open nothing more; the broker was away when that began."""
    with TlsBroker(_in(folder)) as broker:
        broker.stop()
        before = resource.getrlimit(resource.RLIMIT_NOFILE)
        taken: list[int] = []

        def mend() -> None:
            for descriptor in taken:
                os.close(descriptor)
            taken.clear()
            resource.setrlimit(resource.RLIMIT_NOFILE, before)
            broker.start()

        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (300, before[1]))
            with contextlib.suppress(OSError):
                while True:
                    taken.append(os.open(os.devnull, os.O_RDONLY))
            # One is needed to begin: the thread's own bell.
            os.close(taken.pop())
            yield Fault(broker, broker.reach, "Too many open files; let this process open more: LimitNOFILE=", mend)
        finally:
            if taken:
                mend()


@contextmanager
def rival(folder: Path, protocol: str) -> Iterator[Fault]:
    """Another program has the device's name."""
    with contextlib.ExitStack() as stack, Broker(_in(folder)) as broker:
        stack.enter_context(publishing_to(broker, protocol=protocol))
        yield Fault(
            broker,
            {"protocol": protocol},
            "give each its own name (--device, or [device] in a file)",
            stack.close,
        )


@contextmanager
def rival_of_old(folder: Path) -> Iterator[Fault]:
    """The same where the broker cannot say so."""
    with rival(folder, "3.1.1") as fault:
        yield fault


@contextmanager
def rival_of_now(folder: Path) -> Iterator[Fault]:
    """The same where it can."""
    with rival(folder, "5") as fault:
        yield fault


FAULTS: tuple[Callable[[Path], AbstractContextManager[Fault]], ...] = (
    wrong_authority,
    expired_certificate,
    expired_certificate_of_ours,
    wrong_password,
    no_descriptor_left,
    rival_of_old,
    rival_of_now,
)


def _in(folder: Path, name: str = "broker") -> Path:
    path = folder / name
    path.mkdir()
    return path
