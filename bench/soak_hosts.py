"""Hosts of the soak: network namespaces, a switch between them whose links are cut, and processes that are killed.

A host is a network namespace with one TUN device, the first one is that of the calling process. The switch is another
process: it carries IP packets from device to device, except over links that are cut, where it loses them in silence. It
knows nothing of what the packets hold. All of it ends with the calling process, if that is the first one of a process
namespace (`enter`).
"""

import fcntl
import json
import os
import selectors
import signal
import struct
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

_INSIDE = "SANDERLING_SOAK_INSIDE"
_TUNSETIFF = 0x400454CA
_TUN_WITHOUT_HEADER = 0x0001 | 0x1000
_PACKET_BYTES_MAX = 1 << 16
# Large packets, so that the switch has few of them.
_MTU = 32_000
# Where the destination of an IPv4 packet has its last byte, which is the number of the host plus 1.
_HOST_AT = 19
_MIB = 1024.0


def enter() -> None:
    """Goes on in new namespaces of network and processes, whose end ends every process in them."""
    if os.environ.get(_INSIDE):
        return
    root = [] if os.geteuid() == 0 else ["--map-root-user"]
    command = ["unshare", *root, "--net", "--pid", "--mount-proc", "--fork", "--kill-child", sys.executable]
    os.environ[_INSIDE] = "1"
    try:
        os.execvp(command[0], [*command, *sys.argv])
    except OSError as error:
        sys.exit(f"unshare: {error}: install util-linux")


def address(host: int) -> str:
    """The address of a host."""
    return f"10.77.0.{host + 1}"


class Network:
    """Hosts, all linked with each other."""

    def __init__(self, hosts: int, log: Path) -> None:
        """Makes the namespaces and starts the switch."""
        self._homes = [os.getpid()]
        devices = []
        for host in range(hosts):
            device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
            fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH22x", f"soak{host}".encode(), _TUN_WITHOUT_HEADER))
            devices.append(device)
            if host:
                # The namespace lives as long as a process in it.
                home = subprocess.Popen(["unshare", "--net", "sleep", "infinity"])
                self._homes.append(home.pid)
                _until_apart(home.pid)
                _must(f"ip link set soak{host} netns {home.pid}")
            lines = [
                "link set lo up",
                f"link set soak{host} mtu {_MTU} up",
                f"addr add {address(host)}/24 dev soak{host}",
            ]
            for line in lines:
                subprocess.run([*self._at(host), "ip", *line.split()], check=True)
        command = [sys.executable, __file__, *map(str, devices)]
        with log.open("w") as output:
            self._switch = subprocess.Popen(
                command, pass_fds=devices, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=output, text=True
            )
        for device in devices:
            os.close(device)
        self.cut([])

    def _at(self, host: int) -> list[str]:
        return ["nsenter", f"--net=/proc/{self._homes[host]}/ns/net"] if host else []

    def command(self, host: int, line: list[str]) -> list[str]:
        """The command line that runs another one on a host."""
        return [*self._at(host), *line]

    def cut(self, links: list[tuple[int, int]]) -> None:
        """Loses packets from the first to the second host of each pair from now on, and of no others."""
        assert self._switch.stdin is not None
        assert self._switch.stdout is not None
        self._switch.stdin.write(json.dumps(links) + "\n")
        self._switch.stdin.flush()
        if not self._switch.stdout.readline():
            raise RuntimeError("the switch has ended")


def _until_apart(process: int) -> None:
    """Waits until a process is in a network namespace of its own."""
    own, until = Path("/proc/self/ns/net").readlink(), time.monotonic() + 10
    while Path(f"/proc/{process}/ns/net").readlink() == own:
        if time.monotonic() > until:
            raise RuntimeError("a network namespace was not made")
        time.sleep(0.01)


def _must(line: str) -> None:
    subprocess.run(line.split(), check=True)


@dataclass
class Life:
    """Resident memory of a process over its life."""

    name: str
    samples: list[tuple[float, float]] = field(default_factory=list)
    """Seconds of the monotonic clock, and MiB."""


class Part:
    """A process that is started again after it was killed, on one host."""

    def __init__(self, name: str, host: int, network: Network, command: list[str], folder: Path) -> None:
        """Starts it."""
        self.name, self.host, self.kills = name, host, 0
        self._command, self._folder = network.command(host, command), folder
        self.lives: list[Life] = []
        self.start()

    def start(self) -> None:
        """Starts it; its output is added to a file."""
        with (self._folder / f"{self.name}.log").open("ab") as output:
            self._process = subprocess.Popen(self._command, cwd=self._folder, stdout=output, stderr=output)
        self.lives.append(Life(self.name))

    def has_ended(self) -> int | None:
        """Its exit status, if it has ended by itself."""
        return self._process.poll()

    def kill(self) -> None:
        """Kills it, and waits for its end."""
        self._process.kill()
        self._process.wait()
        self.kills += 1

    def stop_for(self, seconds: float) -> None:
        """Stops it for a time."""
        self._process.send_signal(signal.SIGSTOP)
        time.sleep(seconds)
        self._process.send_signal(signal.SIGCONT)

    def sample(self) -> None:
        """Notes its resident memory."""
        life = self.lives[-1]
        try:
            lines = Path(f"/proc/{self._process.pid}/status").read_text().splitlines()
        except OSError:
            return
        mib = [int(line.split()[1]) / _MIB for line in lines if line.startswith("VmRSS:")]
        life.samples += [(time.monotonic(), size) for size in mib]


def _switch(devices: list[int]) -> None:
    """Carries packets until standard input ends. A line of it is the list of links that are cut; it is answered."""
    silent: set[tuple[int, int]] = set()
    numbers = {device: host for host, device in enumerate(devices)}
    selector = selectors.DefaultSelector()
    for descriptor in [*devices, sys.stdin.fileno()]:
        selector.register(descriptor, selectors.EVENT_READ)
    while True:
        for key, _ in selector.select():
            if key.fd == sys.stdin.fileno():
                line = os.read(key.fd, _PACKET_BYTES_MAX).decode()
                if not line:
                    return
                silent = {(there, back) for there, back in json.loads(line)}
                sys.stdout.write("cut\n")
                sys.stdout.flush()
                continue
            try:
                packet = os.read(key.fd, _PACKET_BYTES_MAX)
                to = packet[_HOST_AT] - 1
                # IPv6 and addresses of no host have no device.
                if packet[0] >> 4 == 4 and 0 <= to < len(devices) and (numbers[key.fd], to) not in silent:
                    os.write(devices[to], packet)
            except OSError:
                # As a cable: a packet that cannot be taken is lost.
                continue


if __name__ == "__main__":
    _switch([int(word) for word in sys.argv[1:]])
