"""A network cable between two namespaces with delay and loss, which is cut and healed, for the test of several hosts.

Makes two TUN devices in the namespace that it is started in; the test moves the second one to the other namespace. It
carries IP packets between them until its standard input ends, and knows nothing of what is in them. Arguments: names of
the devices; delay one way in milliseconds; share of packets lost; seed; the packet before which it is cut; for how many
milliseconds, where 0 is for ever. It says "ready", then "cut", then "healed", then "more" when a packet follows.

A line of its standard input is "first", "second" or "both", the ends from which no packet arrives any more, or "none".
It is repeated when it is done.
"""

import fcntl
import heapq
import os
import random
import selectors
import struct
import sys
import time

TUNSETIFF = 0x400454CA
IFF_TUN_WITHOUT_HEADER = 0x0001 | 0x1000
PACKET_BYTES_MAX = 1 << 16


def open_device(name: str) -> int:
    """A new device of this name."""
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TUN_WITHOUT_HEADER))
    return device


def say(word: str) -> None:
    """Tells the test."""
    sys.stdout.write(word + "\n")
    sys.stdout.flush()


def carry(ends: list[int], delay_s: float, loss: float, chance: random.Random, cut_at: int, cut_s: float) -> None:
    """Carries packets until standard input ends."""
    waiting: list[tuple[float, int, int, bytes]] = []
    count, healed_at, is_healed, is_followed = 0, float("inf"), False, False
    told = {"first": ends[:1], "second": ends[1:], "both": ends, "none": []}
    silent: list[int] = []
    selector = selectors.DefaultSelector()
    for end in [*ends, sys.stdin.fileno()]:
        selector.register(end, selectors.EVENT_READ)
    while True:
        due = waiting[0][0] if waiting else float("inf")
        wake = min(due, float("inf") if is_healed else healed_at)
        timeout = None if wake == float("inf") else max(wake - time.monotonic(), 0)
        ready = [key.fd for key, _ in selector.select(timeout)]
        if sys.stdin.fileno() in ready:
            ready.remove(sys.stdin.fileno())
            word = os.read(sys.stdin.fileno(), PACKET_BYTES_MAX).decode()
            if not word:
                return
            # The end of the line may come by itself.
            if word.strip():
                silent = told[word.strip()]
                say(word.strip())
        now = time.monotonic()
        if now >= healed_at and not is_healed:
            is_healed = True
            say("healed")
        for end in ready:
            packet = os.read(end, PACKET_BYTES_MAX)
            count += 1
            if count == cut_at:
                healed_at = now + cut_s if cut_s > 0 else float("inf")
                say("cut")
            is_cut = (count >= cut_at and not is_healed) or end in silent
            if is_healed and not is_followed:
                is_followed = True
                say("more")
            if not is_cut and chance.random() >= loss:
                heapq.heappush(waiting, (now + delay_s, count, ends[1 - ends.index(end)], packet))
        while waiting and waiting[0][0] <= now:
            _, _, end, packet = heapq.heappop(waiting)
            try:
                os.write(end, packet)
            except OSError:
                # As a cable: what cannot be taken is lost.
                continue


def main() -> None:
    """Makes the devices and carries packets."""
    first, second, delay_ms, loss, seed, cut_at, cut_ms = sys.argv[1:]
    ends = [open_device(first), open_device(second)]
    say("ready")
    carry(ends, float(delay_ms) / 1e3, float(loss), random.Random(int(seed)), int(cut_at), float(cut_ms) / 1e3)


main()
