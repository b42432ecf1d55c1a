"""What is left of the memory: every limit from files that a test writes."""

import os
import pickle
import resource
import sys

import numpy as np
import pytest

from rml import memory_room
from rml.errors import OutOfMemory, RmlError
from rml.memory_room import Room, no_room, out_of_memory

MACHINE = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
PAGE = resource.getpagesize()


@pytest.fixture
def system(tmp_path, monkeypatch):
    """`system(files, RLIMIT_AS=...)`: a /proc and a /sys/fs/cgroup; their paths."""

    def make(files=None, **limits):
        found = {"proc/self/statm": "1000 800 200 5 0 300 0"} | (files or {})
        for name, text in found.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        numbers = {getattr(resource, name): value for name, value in limits.items()}
        monkeypatch.setattr(
            resource, "getrlimit", lambda n: (numbers.get(n, resource.RLIM_INFINITY),) * 2
        )
        return tmp_path / "proc", tmp_path / "cgroup"

    return make


def test_a_system_that_says_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sysconf", lambda name: (_ for _ in ()).throw(ValueError(name)))
    for room in (memory_room.usable(tmp_path, tmp_path), memory_room.total(tmp_path, tmp_path)):
        assert (room.n_bytes, room.is_limited) == (sys.maxsize, False)
    assert no_room("it", 5, room).available is None


def test_without_proc_the_machine_counts(tmp_path):
    assert memory_room.usable(tmp_path, tmp_path).n_bytes == MACHINE
    assert memory_room.total(tmp_path, tmp_path).n_bytes == MACHINE
    assert not memory_room.reservable(tmp_path).is_limited


def test_what_the_machine_has_available(system):
    paths = system({"proc/meminfo": "MemTotal:  900 kB\nMemFree: 5 kB\nMemAvailable:   70 kB\n"})

    assert memory_room.usable(*paths) == Room(70 * 1024, "the memory of this machine")


V2 = {
    "proc/self/cgroup": "0::/user/app\n",
    "cgroup/user/app/memory.max": "1000000\n",
    "cgroup/user/app/memory.current": "400000\n",
    "cgroup/user/app/memory.stat": "anon 5\ninactive_file 1000\nactive_file 200\n"
    "slab_reclaimable 30\nslab_unreclaimable 7\n",
    "cgroup/user/memory.max": "max\n",
    "cgroup/user/memory.current": "900000\n",
}
V1 = {
    "proc/self/cgroup": "12:cpu,cpuacct:/other\n4:memory:/app\n0::/\n",
    "cgroup/memory/app/memory.limit_in_bytes": "1000000",
    "cgroup/memory/app/memory.usage_in_bytes": "400000",
    "cgroup/memory/app/memory.stat": "inactive_file 9\ntotal_inactive_file 1000\n"
    "total_active_file 230\n",
    "cgroup/memory/memory.limit_in_bytes": "9223372036854771712",
    "cgroup/memory/memory.usage_in_bytes": "500000",
}


@pytest.mark.parametrize("files", [V2, V1], ids=["v2", "v1"])
def test_a_control_group_leaves_its_limit_less_what_cannot_be_freed(system, files):
    paths = system(files)

    assert memory_room.usable(*paths) == Room(1_000_000 - 400_000 + 1230, GROUP)
    assert memory_room.total(*paths) == Room(1_000_000, GROUP)


def test_a_group_above_may_leave_less(system):
    above = {"cgroup/memory.max": "1200000", "cgroup/memory.current": "1150000"}
    paths = system(V2 | above)

    assert memory_room.usable(*paths).n_bytes == 50_000
    assert memory_room.total(*paths).n_bytes == 1_000_000


def test_a_group_that_is_full_leaves_nothing(system):
    paths = system(V2 | {"cgroup/user/app/memory.current": "1300000"})

    assert memory_room.usable(*paths).n_bytes == 0


def test_in_a_container_the_groups_that_are_to_be_seen_count(system):
    # The name is that of the host; what is mounted is the container's own group.
    paths = system({
        "proc/self/cgroup": "0::/../../docker/0123\n",
        "cgroup/memory.max": "5000", "cgroup/memory.current": "1000",
    })  # fmt: skip

    assert memory_room.usable(*paths).n_bytes == 4000


GROUP = "the memory limit of the control group"


def group(folder, limit, used, **more):
    """Files of a group of version 2, below cgroup/."""
    files = {"memory.max": limit, "memory.current": used} | more
    return {f"cgroup/{folder}/{name.replace('_', '.')}": f"{n}\n" for name, n in files.items()}


def mountinfo(*mounts):
    """Lines of /proc/self/mountinfo: the group that is mounted, where, its kind, its options."""
    lines = [
        f"{i} 20 0:{i} {root} {point} rw,nosuid shared:{i} - {kind} cgroup {options}\n"
        for i, (root, point, kind, options) in enumerate(mounts, 30)
    ]
    return {
        "proc/self/mountinfo": "22 1 254:0 / / rw - ext4 /dev/vda rw\nbroken\n" + "".join(lines)
    }


@pytest.mark.parametrize("tightest", range(4))
def test_of_all_groups_above_the_tightest_counts(system, tightest):
    folders = ["", "a", "a/b", "a/b/c"]
    files = {"proc/self/cgroup": "0::/a/b/c\n"}
    for i, folder in enumerate(folders):
        files |= group(folder, 700 if i == tightest else 5000, 100 + i)

    assert memory_room.usable(*system(files)) == Room(600 - tightest, GROUP)
    assert memory_room.total(*system(files)) == Room(700, GROUP)


def test_a_group_that_is_slowed_down_counts_as_full(system):
    files = {"proc/self/cgroup": "0::/a/b\n"}
    files |= group("a", "max", 300, memory_high=1000) | group("a/b", 5000, 10, memory_high="max")

    assert memory_room.usable(*system(files)) == Room(700, GROUP)
    assert memory_room.total(*system(files)) == Room(1000, GROUP)


def test_a_limit_without_a_word_about_the_use_is_a_limit(system):
    files = {"proc/self/cgroup": "0::/a\n", "cgroup/a/memory.max": "1000"}

    assert memory_room.usable(*system(files)) == Room(1000, GROUP)


V2_MOUNT = ("/sys/fs/cgroup", "cgroup2", "rw,nsdelegate")


@pytest.mark.parametrize(
    ("path", "root", "expected"),
    [
        ("/", "/", ""),  # a namespace of its own
        ("/a/b", "/", "a/b"),
        ("/docker/1/a/b", "/docker/1", "a/b"),  # what is mounted is a group further down
        ("/docker/1", "/docker/1", ""),
        ("/../../x/a", "/../..", "x/a"),  # what is mounted begins above the namespace
        ("/docker/2/a", "/docker/1", ""),  # another container's: only the mount is to be seen
        ("/docker/12", "/docker/1", ""),
        ("/../a", "/", ""),  # outside of the namespace
        ("/a/../../b", "/a", ""),
        ("/a (deleted)", "/", ""),
    ],
)
def test_a_path_is_followed_from_the_group_that_is_mounted(system, path, root, expected):
    files = {"proc/self/cgroup": f"0::{path}\n"} | mountinfo((root, *V2_MOUNT))
    paths = system(files)
    places = ["", "a", "a/b", "x/a", "b", "docker/1", "docker/2/a", "2/a", "../b"]
    for i, place in enumerate(places):
        folder = paths[1] / place
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "memory.max").write_text("9000" if place != expected else "1000")
        (folder / "memory.current").write_text(str(i))

    assert memory_room.usable(*paths) == Room(1000 - places.index(expected), GROUP)


def test_a_mount_elsewhere_with_a_space_in_its_name(system, tmp_path):
    point = str(tmp_path / "my groups").replace(" ", r"\040")
    files = {"proc/self/cgroup": "0::/ä/b\n", "my groups/ä/memory.max": "1000"}
    files |= mountinfo(("/", point, "cgroup2", "rw"))

    assert memory_room.usable(*system(files)) == Room(1000, GROUP)


def test_both_versions_beside_each_other(system):
    files = {
        "proc/self/cgroup": "4:memory:/app\n1:name=systemd:/app\n0::/app\n",
        "cgroup/memory/app/memory.limit_in_bytes": "3000",
        "cgroup/memory/app/memory.usage_in_bytes": "1000",
        "cgroup/unified/app/memory.max": "1500",
    }
    assert memory_room.usable(*system(files)) == Room(1500, GROUP)

    mounts = mountinfo(
        ("/", "/sys/fs/cgroup/memory", "cgroup", "rw,memory"),
        ("/", "/sys/fs/cgroup/systemd", "cgroup", "rw,name=systemd"),
        ("/", "/sys/fs/cgroup/unified", "cgroup2", "rw"),
    )
    del files["cgroup/unified/app/memory.max"]
    (system({})[1] / "unified/app/memory.max").unlink()
    assert memory_room.usable(*system(files | mounts)) == Room(2000, GROUP)


def test_version_1_tells_limits_above_what_is_mounted(system):
    stat = V1["cgroup/memory/app/memory.stat"] + "hierarchical_memory_limit 500000\n"
    paths = system(V1 | {"cgroup/memory/app/memory.stat": stat})

    assert memory_room.total(*paths) == Room(500_000, GROUP)
    assert memory_room.usable(*paths) == Room(500_000 - 400_000 + 1230, GROUP)


@pytest.mark.parametrize("text", ["", "max", "many", "-1", "1e9", "\udcff", "9" * 5000, "٣", "²"])
def test_limits_that_are_no_numbers_are_none(system, text):
    paths = system(V2)
    (paths[1] / "user/app/memory.max").write_bytes(text.encode("utf-8", "surrogateescape"))

    assert memory_room.usable(*paths).n_bytes == MACHINE


def test_limits_of_the_process(system):
    proc, _ = system(RLIMIT_AS=1500 * PAGE)
    assert memory_room.reservable(proc) == Room(
        500 * PAGE, "the address space of this process, ulimit -v"
    )

    proc, _ = system(RLIMIT_AS=1500 * PAGE, RLIMIT_DATA=700 * PAGE)
    assert memory_room.reservable(proc) == Room(400 * PAGE, "the data of this process, ulimit -d")

    proc, _ = system(RLIMIT_AS=10)  # set when more was in use
    assert memory_room.reservable(proc).n_bytes == 0


@pytest.mark.parametrize("statm", ["", "x", "1 2"])
def test_a_process_whose_use_nobody_says(system, statm):
    proc, _ = system({"proc/self/statm": statm}, RLIMIT_DATA=700 * PAGE)

    assert not memory_room.reservable(proc).is_limited


@pytest.mark.parametrize(("mode", "expected"), [("0", None), ("1", None), ("2", 30 * 1024)])
def test_promises_count_where_the_machine_keeps_them(system, mode, expected):
    proc, _ = system({
        "proc/sys/vm/overcommit_memory": f"{mode}\n",
        "proc/meminfo": "CommitLimit:     100 kB\nCommitted_AS:     70 kB\n",
    })  # fmt: skip
    room = memory_room.reservable(proc)

    assert (room.n_bytes if room.is_limited else None) == expected


def test_available_is_the_least(monkeypatch):
    monkeypatch.setattr(memory_room, "usable", lambda: Room(5, "a"))
    monkeypatch.setattr(memory_room, "reservable", lambda: Room(7, "b"))
    assert memory_room.available() == Room(5, "a")

    monkeypatch.setattr(memory_room, "usable", lambda: Room(9, "a"))
    assert memory_room.available() == Room(7, "b")


def test_this_machine():
    room = memory_room.available()

    assert 0 < room.n_bytes <= memory_room.total().n_bytes <= MACHINE


# ---- the error ----


def test_the_error_says_everything_on_one_line_and_survives_pickling():
    error = no_room("a cache", 1_234_567, Room(5000, "a limit"), largest_context=7, advice="do it")
    again = pickle.loads(pickle.dumps(error))

    for each in (error, again):
        assert str(each) == (
            "not enough memory for a cache: bytes needed: 1,234,567, available: 5,000 (a limit); "
            "the largest context that fits is 7 tokens; do it"
        )
        assert (each.needed, each.available, each.largest_context) == (1_234_567, 5000, 7)
        assert isinstance(each, RmlError)
        assert isinstance(each, MemoryError)


def test_memory_errors_become_rmls_with_what_numpy_asked_for():
    asked = "rows: bytes needed: 4,000,000,000,000,000"
    with pytest.raises(OutOfMemory, match=asked) as e, out_of_memory("rows"):
        np.empty((1000, 10**12), np.float32)
    assert isinstance(e.value.__cause__, MemoryError)


@pytest.mark.parametrize(
    ("error", "needed"), [(MemoryError(), None), (MemoryError("no memory for 70 bytes of x"), 70)]
)
def test_memory_errors_of_others(error, needed):
    @out_of_memory("it", "do that")
    def fail():
        raise error

    with pytest.raises(OutOfMemory, match=r"not enough memory for it: bytes .*; do that$") as e:
        fail()
    assert e.value.needed == needed


def test_what_is_rmls_already_stays_as_it_is():
    mine = no_room("mine", 5)
    with pytest.raises(OutOfMemory) as e, out_of_memory("other"):
        raise mine
    assert e.value is mine
