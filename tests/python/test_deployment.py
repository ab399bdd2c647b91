"""The units of deploy/systemd and the Containerfile: what they start, and the notifications and files it needs."""

import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from processes import PATIENCE_S, command, free_port, page, train, write_clicks

import sanderling

ROOT = Path(__file__).parents[2]
UNITS = sorted((ROOT / "deploy/systemd").glob("*.service"))
PROGRAM = "/usr/local/bin/sanderling"
# The libraries of gcr.io/distroless/cc-debian12.
LIBRARIES = {"ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1", "libc.so.6", "libgcc_s.so.1", "libm.so.6"}
USER = 65532


def test_units_are_valid(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("skipped: systemd-analyze is not installed")
    assert len(UNITS) == 4
    for unit in UNITS:
        # The program need not be installed on this machine.
        (tmp_path / unit.name).write_text(unit.read_text().replace(PROGRAM, "/bin/true"))
    files = [str(tmp_path / unit.name) for unit in UNITS]
    checked = subprocess.run(["systemd-analyze", "verify", *files], capture_output=True, text=True, check=False)
    said = [line for line in checked.stderr.splitlines() if "sanderling" in line]
    assert said == []


class Manager:
    """As much of systemd as a unit with Type=notify sees: it expands variables, and receives notifications."""

    def __init__(self, unit: Path, root: Path) -> None:
        text = re.sub(r"(/etc|/var/lib)/", rf"{root}\1/", unit.read_text())
        settings = dict(re.findall(r"^(\w+)=(.*)$", text, re.MULTILINE))
        variables: dict[str, str] = {}
        if file := settings.get("EnvironmentFile"):
            lines = Path(file.removeprefix("-")).read_text().splitlines()
            variables = {name: value.strip('"') for name, _, value in (line.partition("=") for line in lines)}
        line = re.sub(r"\$\{(\w+)\}", lambda name: shlex.quote(variables[name[1]]), settings["ExecStart"])
        line = re.sub(r"\$(\w+)", lambda name: variables[name[1]], line)
        program, *self.arguments = shlex.split(line)
        assert program == PROGRAM
        for directory in re.findall(r"^StateDirectory=(.*)$", text, re.MULTILINE):
            (root / "var/lib" / directory).mkdir(parents=True)
        self.notifies = settings["Type"] == "notify"
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(str(root / "notify"))
        self.socket.settimeout(PATIENCE_S)
        self.environment = os.environ | {"NOTIFY_SOCKET": str(root / "notify"), "XDG_RUNTIME_DIR": str(root / "run")}
        (root / "run").mkdir(mode=0o700)

    @contextmanager
    def running(self) -> Iterator[str]:
        """Gives its first line once it is ready; then stops it as systemd does."""
        process = subprocess.Popen(command(*self.arguments), env=self.environment, stdout=subprocess.PIPE, text=True)
        try:
            assert process.stdout is not None
            said = process.stdout.readline()
            if self.notifies:
                assert self.socket.recv(100) == b"READY=1"
            yield said
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE_S) == 0
            if self.notifies:
                assert self.socket.recv(100) == b"STOPPING=1"
        finally:
            process.kill()
            process.communicate()
            self.socket.close()


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_what_a_unit_starts_says_when_it_is_ready(unit: Path, tmp_path: Path) -> None:
    configuration = tmp_path / "etc/sanderling"
    configuration.mkdir(parents=True)
    write_clicks(configuration)
    at, metrics = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
    data = tmp_path / "var/lib/sanderling"
    (configuration / "ps.toml").write_text(f'listen = ["{at}"]\ncontrol = "{metrics}"\ndata = "{data}"\nthreads = 1\n')
    log = configuration / "clicks.csv"
    (configuration / "hub.toml").write_text((configuration / "clicks.toml").read_text().replace("clicks.csv", str(log)))
    (configuration / "hub.env").write_text(f"HUB_OPTIONS=--listen {at}\n")
    (configuration / "keeper.env").write_text(f"KEEPER_OPTIONS=--listen {at}\n")
    if "serve" in unit.stem:
        model = train(configuration)
        (configuration / "serve.env").write_text(f'SERVE_MODEL={model}\nSERVE_OPTIONS="--listen {at} --threads 1"\n')
    manager = Manager(unit, tmp_path)
    # Two processes of this machine may test the unit at the same time.
    manager.arguments = [metrics if argument == "127.0.0.1:9100" else argument for argument in manager.arguments]
    with manager.running() as said:
        assert at in said
        if "hub" in unit.stem:
            assert page(f"http://{metrics}/healthz")
        elif "serve" in unit.stem:
            assert page(f"http://{at}/health")
        elif "keeper" in unit.stem:
            assert page(f"http://{at}/healthz")
        else:
            sanderling.connect(at).table("t", 2)
    if "ps" in unit.stem:
        assert (data / "latest/manifest.json").exists()


def instructions() -> list[list[list[str]]]:
    """The stages of the Containerfile, each a list of instructions."""
    text = (ROOT / "Containerfile").read_text().replace("\\\n", " ")
    lines = [shlex.split(line) for line in text.splitlines() if line and not line.startswith("#")]
    starts = [at for at, line in enumerate(lines) if line[0] == "FROM"]
    return [lines[start:end] for start, end in zip(starts, [*starts[1:], len(lines)], strict=True)]


def test_the_image_is_built_by_the_command_of_the_readme() -> None:
    build, _ = instructions()
    (run,) = (line[1:] for line in build if line[0] == "RUN")
    told = "cargo install --locked --path crates/cli"
    assert f"`{told}`" in (ROOT / "README.md").read_text()
    assert run == [*told.split(), "--root", "/made"]


def test_the_build_context_has_what_cargo_needs(tmp_path: Path) -> None:
    patterns = (ROOT / ".dockerignore").read_text().splitlines()
    sent = {pattern.removeprefix("!") for pattern in patterns if pattern.startswith("!")}
    assert patterns[1] == "*"
    for name in sent:
        assert (ROOT / name).exists(), name
        (tmp_path / name).symlink_to(ROOT / name)
    cargo = shutil.which("cargo")
    if cargo is None:
        pytest.skip("skipped: cargo is not installed")
    listing = [cargo, "metadata", "--locked", "--offline", "--no-deps", "--format-version=1"]
    listed = subprocess.run(listing, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert listed.returncode == 0, listed.stderr
    # Files of the sources that the compiler includes from outside of `crates` are for tests only.
    for source in (ROOT / "crates").glob("*/src/**/*.rs"):
        code = source.read_text().partition("#[cfg(test)]")[0]
        if not source.name.endswith("tests.rs"):
            assert not re.search(r'include_(?:str|bytes)!\("(?:\.\./){3,}', code), source


def needed(program: Path) -> set[str]:
    """The shared libraries that a program is linked with."""
    if shutil.which("readelf") is None:
        pytest.skip("skipped: readelf is not installed")
    listed = subprocess.run(["readelf", "--dynamic", str(program)], capture_output=True, text=True, check=True)
    return set(re.findall(r"\(NEEDED\).*\[(.*)\]", listed.stdout))


def test_the_entry_point_starts_in_the_layout_of_the_image(tmp_path: Path) -> None:
    """With nothing but the program and the base image's libraries, as its user, on files that it may not change."""
    _, image = instructions()
    (copied,) = (line for line in image if line[0] == "COPY")
    assert copied[1:] == ["--from=build", "/made/bin/sanderling", PROGRAM]
    assert [line[1] for line in image if line[0] == "USER"] == [f"{USER}:{USER}"]
    (entry,) = (line[1:] for line in image if line[0] == "ENTRYPOINT")
    assert entry == [f"[{PROGRAM}]"]
    program = next(
        (at for kind in ("release", "debug") if (at := ROOT / "target" / kind / "sanderling").exists()), None
    )
    # Continuous integration may not have linked the program yet; the module is linked with the same libraries.
    native = Path(str(sanderling._native.__file__))
    assert needed(program or native) <= LIBRARIES
    if program is None or os.geteuid() != 0 or shutil.which("chroot") is None:
        pytest.skip("skipped: the layout needs target/*/sanderling, root and chroot")
    root = tmp_path / "root"
    for file in (program, *_libraries(program)):
        place = root / (PROGRAM if file == program else str(file)).lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, place)
    for folder in (root, *(path for path in root.rglob("*") if path.is_dir())):
        folder.chmod(0o755)
    prefix = ["chroot", f"--userspec={USER}:{USER}", str(root), PROGRAM]
    said = subprocess.run([*prefix, "--version"], capture_output=True, text=True, check=False)
    assert said.stdout.startswith("sanderling "), said.stderr
    address = f"127.0.0.1:{free_port()}"
    started = subprocess.Popen(
        [*prefix, "ps", "--listen", address, "--no-local", "--no-token"], stdout=subprocess.PIPE, text=True
    )
    try:
        assert started.stdout is not None
        assert started.stdout.readline() == f"listening at tcp://{address}\n"
        started.send_signal(signal.SIGTERM)
        assert started.wait(PATIENCE_S) == 0
    finally:
        started.kill()
        started.communicate()


def _libraries(program: Path) -> list[Path]:
    """The files of its libraries, the loader among them."""
    listed = subprocess.run(["ldd", str(program)], capture_output=True, text=True, check=True)
    return [Path(path) for path in re.findall(r"(/\S+) \(0x", listed.stdout)]
