"""Recorded file trees: a machine's sysfs, /proc and /etc as one text file, planted into a folder for a test.

The format, by lines: `== path` begins a file, whose lines follow; `=> path -> target` is a link; `=/ path` an empty
folder; `=cpus sockets cores threads` makes the topology files of that many CPUs, numbered as Linux does (first
threads of all cores, socket by socket, then their siblings); `=nic way name interface link-layer rate` makes a port
with RDMA, which is down if that is its rate. Text before the first of these is a comment. Links are why this is no
plain folder: archives refuse links that lead outside.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

RECORDED = Path(__file__).parent.parent / "recorded"


def plant(text: str, root: Path) -> None:
    """Writes the recorded files below `root`."""
    for head, body in split_entries(text):
        mark, _, rest = head.partition(" ")
        match mark:
            case "==":
                write(root / rest, body)
            case "=>":
                path, _, target = rest.partition(" -> ")
                (root / path).parent.mkdir(parents=True, exist_ok=True)
                (root / path).symlink_to(target)
            case "=/":
                (root / rest).mkdir(parents=True, exist_ok=True)
            case "=cpus":
                plant_cpus(root, *map(int, rest.split()))
            case "=nic":
                plant_nic(root, *rest.split(" ", 4))
            case _:
                raise ValueError(f"{head!r} begins with none of ==, =>, =/, =cpus, =nic")


def plant_host(name: str, folder: Path) -> dict[str, str]:
    """Returns the settings with which an agent takes the recorded machine for its host."""
    plant((RECORDED / name / "tree.txt").read_text(), folder)
    (folder / "dev").mkdir(exist_ok=True)
    return {"MESHWRIGHT_HOST_ROOT": str(folder)}


def split_entries(text: str) -> Iterator[tuple[str, str]]:
    head, body = "", []
    for line in text.splitlines():
        if line.startswith("="):
            if head:
                yield head, "\n".join(body)
            head, body = line, []
        else:
            body.append(line)
    if head:
        yield head, "\n".join(body)


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n")


def plant_cpus(root: Path, sockets: int, cores: int, threads: int) -> None:
    physical = sockets * cores
    for cpu in range(physical * threads):
        core = cpu % physical
        folder = root / f"sys/devices/system/cpu/cpu{cpu}/topology"
        write(folder / "physical_package_id", str(core // cores))
        write(folder / "thread_siblings_list", ",".join(str(core + n * physical) for n in range(threads)))
    write(root / "sys/devices/system/cpu/online", f"0-{physical * threads - 1}")


RATES = {"400": "4X NDR", "200": "4X HDR", "100": "4X EDR", "10": "4X SDR"}
"""Gb/s → how the kernel says it (drivers/infiniband/core/sysfs.c, rate_show). A port that is down shows its least."""
NO_ERRORS = (
    *("counters/link_downed", "counters/link_error_recovery", "counters/local_link_integrity_errors"),
    *("counters/excessive_buffer_overrun_errors", "counters/symbol_error", "counters/port_rcv_errors"),
    *("counters/port_xmit_discards", "counters/VL15_dropped", "hw_counters/out_of_sequence"),
    *("hw_counters/packet_seq_err", "hw_counters/local_ack_timeout_err", "hw_counters/np_cnp_sent"),
    "hw_counters/rp_cnp_handled",
)


def plant_nic(root: Path, way: str, name: str, interface: str, link_layer: str, rate: str) -> None:
    """Writes a ConnectX-7 port as Linux shows it: on the PCI bus, as adapter, and as network interface."""
    card = root / "sys/devices" / way
    is_up, is_ethernet = rate != "down", link_layer == "Ethernet"
    for file, text in {
        "vendor": "0x15b3",
        "device": "0x1021",
        "class": f"0x02{'00' if is_ethernet else '07'}00",
    }.items():
        write(card / file, text)
    adapter, links = card / "infiniband" / name, {f"bus/pci/devices/{card.name}": card}
    files = {
        "hca_type": "MT4129", "fw_ver": "28.39.2048", "board_id": "MT_0000000838", "ports/1/link_layer": link_layer,
    }  # fmt: skip
    files["node_guid"] = f"58a2:e103:00{card.name[5:7]}:0{card.name[-1]}00"
    files["ports/1/state"] = "4: ACTIVE" if is_up else "1: DOWN"
    files["ports/1/phys_state"] = "5: LinkUp" if is_up else "3: Disabled" if is_ethernet else "2: Polling"
    speed = rate if is_up else "10"
    files["ports/1/rate"] = f"{speed} Gb/sec ({RATES[speed]})"
    for file, text in {**files, **{f"ports/1/{file}": "0" for file in NO_ERRORS}}.items():
        write(adapter / file, text)
    write(card / "net" / interface / "carrier_down_count", "1")
    if is_ethernet:
        write(adapter / "ports/1/gid_attrs/ndevs/0", interface)
    (adapter / "device").symlink_to(card)
    links |= {f"class/infiniband/{name}": adapter, f"class/net/{interface}": card / "net" / interface}
    for link, target in links.items():
        (root / "sys" / link).parent.mkdir(parents=True, exist_ok=True)
        (root / "sys" / link).symlink_to(target)
