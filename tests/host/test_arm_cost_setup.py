"""Setting up a counter where something is missing: one line, its exit code, and no half of a counter."""

from __future__ import annotations

import errno
import os
import shutil
import stat
from pathlib import Path

import msgspec
import pytest

from edge_sdk.errors import EdgeError, MissingDependencyError, ModelError, OutputError, UsageError
from edge_sdk_tools.arm_cost import Counter, find_counter, installation, set_up
from edge_sdk_tools.arm_cost.apt import Apt
from edge_sdk_tools.arm_cost.counter import write_record
from edge_sdk_tools.arm_cost.recipe import current_recipe
from edge_sdk_tools.arm_cost.wheels import download_wheels

STEPS = ("_add_emulator", "_add_system", "_add_wheels", "_add_plugin", "_try_out")

# A stand-in for the emulator: writes six million sdot, as the plugin would, and ends as it is told to.
EMULATOR = """\
#!/bin/sh
for argument; do case "$argument" in *counts=*) out=${{argument#*counts=}};; esac; done
printf '\\200\\215\\133\\000\\000\\000\\000\\000\\001\\000\\000\\000\\000\\224\\201\\116' > "$out"
{last}
"""


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder that is all of PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    return folder


def program(folder: Path, name: str, text: str = "exit 0") -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(stat.S_IRWXU)


def steps_that_do(monkeypatch: pytest.MonkeyPatch, did: list[str], failing: str = "", error: Exception | None = None):
    """Replace the steps by ones that only leave a file; one of them may fail after that."""

    def step(name: str):
        def act(counter: Counter, *_: object) -> None:
            did.append(name)
            (counter.folder / name).touch()
            if name == failing and error is not None:
                raise error

        return act

    for name in STEPS:
        monkeypatch.setattr(installation, name, step(name))


def kept_counter(folder: Path, last: str) -> Counter:
    """A counter whose emulator is a stand-in."""
    recipe = current_recipe()
    counter = Counter(folder / "arm-cost" / recipe.key, recipe)
    counter.folder.mkdir(parents=True)
    counter.emulator.write_text(EMULATOR.format(last=last))
    counter.emulator.chmod(stat.S_IRWXU)
    write_record(counter)
    return counter


def test_it_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    did: list[str] = []
    told: list[tuple[str, int, int]] = []
    steps_that_do(monkeypatch, did)
    assert find_counter(tmp_path) is None
    counter = set_up(tmp_path, lambda *step: told.append(step))
    assert did == list(STEPS)
    assert told[0] == ("emulator", 0, 1)
    assert told[-1] == ("trial", 1, 1)
    assert [path.name for path in (tmp_path / "arm-cost").iterdir()] == [counter.recipe.key]
    assert set_up(tmp_path).folder == counter.folder
    found = find_counter(tmp_path)
    assert found is not None
    assert found.folder == counter.folder
    assert did == list(STEPS)


@pytest.mark.parametrize("failing", STEPS)
@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (MissingDependencyError("no network"), MissingDependencyError),
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), OutputError),
    ],
)
def test_failing_half_way_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str, error: Exception, expected: type[EdgeError]
) -> None:
    did: list[str] = []
    steps_that_do(monkeypatch, did, failing, error)
    with pytest.raises(expected) as caught:
        set_up(tmp_path)
    assert "\n" not in str(caught.value)
    assert did[-1] == failing
    assert list((tmp_path / "arm-cost").iterdir()) == []
    assert find_counter(tmp_path) is None
    steps_that_do(monkeypatch, [])
    assert set_up(tmp_path).record.is_file()


def test_a_full_disk_is_said_and_downloads_go_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps_that_do(monkeypatch, [], "_add_system", OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
    (tmp_path / "arm-cost" / "downloads").mkdir(parents=True)
    with pytest.raises(OutputError, match="the counter cannot be set up: No space left on device"):
        set_up(tmp_path)
    assert list((tmp_path / "arm-cost").iterdir()) == []


def test_what_was_abandoned_is_removed_and_a_folder_without_a_record_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps_that_do(monkeypatch, [])
    place = tmp_path / "arm-cost"
    for name in (".making-killed/counter", current_recipe().key, "downloads/wheels"):
        (place / name).mkdir(parents=True)
    counter = set_up(tmp_path)
    assert [path.name for path in place.iterdir()] == [counter.recipe.key]
    assert counter.record.is_file()


@pytest.mark.parametrize("missing", ["apt-get", "dpkg-deb", "tar", "cc"])
def test_a_missing_program_is_named(tmp_path: Path, programs: Path, missing: str) -> None:
    for name in {"apt-get", "dpkg-deb", "tar", "cc"} - {missing}:
        program(programs, name)
    with pytest.raises(MissingDependencyError, match=missing) as caught:
        set_up(tmp_path / "cache")
    assert caught.value.exit_code == 8
    assert not (tmp_path / "cache").exists()


def test_a_folder_that_cannot_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps_that_do(monkeypatch, [])
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match="Not a directory"):
        set_up(tmp_path / "file")


def test_apt_that_fetches_nothing_gives_its_last_words_without_passwords(tmp_path: Path, programs: Path) -> None:
    for name in ("dpkg-deb", "tar"):
        program(programs, name)
    program(programs, "apt-get", "echo 'E: Failed to fetch http://me:secret@host/x' >&2; exit 100")
    apt = Apt("arm64", tmp_path / "state", tmp_path / "archives")
    with pytest.raises(MissingDependencyError) as caught:
        apt.download(["python3.11"])
    assert "python3.11 (E: Failed to fetch http://host/x)" in str(caught.value)
    assert "secret" not in str(caught.value)


def test_wheels_that_cannot_be_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with pytest.raises(MissingDependencyError, match=r"pip cannot fetch numpy==2\.4\.6 for aarch64") as caught:
        download_wheels(["numpy==2.4.6"], "3.11", tmp_path / "wheels")
    assert "\n" not in str(caught.value)


def test_a_compiler_that_fails(tmp_path: Path, programs: Path) -> None:
    program(programs, "cc", "echo 'icount.c:1: stdio.h: No such file' >&2; exit 1")
    counter = Counter(tmp_path, current_recipe())
    with pytest.raises(MissingDependencyError, match=r"stdio\.h: No such file\); install Debian's build-essential"):
        installation._add_plugin(counter, str(programs / "cc"))


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
def test_the_plugin_compiles_without_a_warning(tmp_path: Path) -> None:
    cc = tmp_path / "strict"
    program(tmp_path, "strict", 'exec cc -Wall -Wextra -Werror "$@"')
    counter = Counter(tmp_path, current_recipe())
    installation._add_plugin(counter, str(cc))
    assert counter.plugin.is_file()


def test_the_key_changes_with_what_is_in_it() -> None:
    recipe = current_recipe()
    assert recipe.key.startswith(f"onnxruntime-{recipe.onnxruntime}-")
    assert recipe.key == current_recipe().key
    for changes in ({"plugin": "other"}, {"numpy": "2.0.0"}, {"machine": "riscv64"}, {"cores": ()}):
        assert msgspec.structs.replace(recipe, **changes).key != recipe.key


def test_counting_reads_what_the_plugin_wrote(tmp_path: Path) -> None:
    counter = kept_counter(tmp_path, "printf 1.31.1")
    model = tmp_path / "a,b.onnx"
    model.touch()
    counts = counter.count(model, "cortex-a72")
    assert (counts.model, counts.cpu, counts.onnxruntime, counts.total) == (
        "a,b.onnx",
        "cortex-a72",
        "1.31.1",
        6_000_000,
    )
    assert counts.by_class["sdot"] == 6_000_000


@pytest.mark.parametrize(
    ("last", "error", "expected"),
    [
        ("echo one >&2; echo 'no kernel' >&2; exit 3", ModelError, "m.onnx: ONNX Runtime on an emulated .* no kernel"),
        ("kill -SEGV $$", EdgeError, "m.onnx: the emulator of cortex-a76 died of SIGSEGV: it said nothing"),
        ("echo gone >&2; exit 127", EdgeError, "m.onnx: the emulator of cortex-a76 ended with 127: gone"),
        ("exec sleep 600", EdgeError, r"m.onnx: not counted within 0\.3 s"),
    ],
)
def test_what_goes_wrong_in_the_emulator_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, last: str, error: type[EdgeError], expected: str
) -> None:
    scratch = tmp_path / "tmp"
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    counter = kept_counter(tmp_path, last)
    model = tmp_path / "m.onnx"
    model.touch()
    with pytest.raises(error, match=expected) as caught:
        counter.count(model, "cortex-a76", time_limit_s=0.3 if "sleep" in last else 60)
    assert "\n" not in str(caught.value)
    assert list(scratch.iterdir()) == []


def test_only_models_and_known_cores_are_counted(tmp_path: Path) -> None:
    counter = kept_counter(tmp_path, "exit 0")
    (tmp_path / "model.toml").touch()
    (tmp_path / "model.onnx").touch()
    for path, cpu, expected in (
        (tmp_path / "none.onnx", "cortex-a76", "no such file"),
        (tmp_path / "model.toml", "cortex-a76", "not a model, expected an .onnx or .ort file"),
        (tmp_path / "model.onnx", "cortex-a53", "'cortex-a53' cannot be counted"),
    ):
        with pytest.raises(UsageError, match=expected):
            counter.count(path, cpu)  # type: ignore[arg-type]  # one of the cores is none, on purpose


def test_a_counter_that_counts_nothing_fails_its_trial(tmp_path: Path) -> None:
    with pytest.raises(EdgeError, match=r"has ONNX Runtime '0\.1'"):
        kept_counter(tmp_path, "printf 0.1").try_out("cortex-a72")
