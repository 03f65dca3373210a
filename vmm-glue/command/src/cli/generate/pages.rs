//! Contents of man pages besides the arguments.

/// A term and what it means.
pub(super) type Term = (&'static str, &'static str);

/// Contents of the page of a command, and of those of the commands below it.
#[derive(Debug)]
pub(super) struct Page {
    /// The command; empty for `vhca` itself.
    pub(super) command: &'static str,
    /// Exit statuses that differ from the usual ones.
    pub(super) exit: &'static [Term],
    /// Variables besides those of arguments.
    pub(super) environment: &'static [Term],
    /// Files besides the sockets.
    pub(super) files: &'static [Term],
    /// Command lines.
    pub(super) examples: &'static [Term],
    /// Other pages: commands, or names with their sections.
    pub(super) see: &'static [&'static str],
}

/// Exit statuses of all commands.
pub(super) const EXIT: [Term; 4] = [
    ("0", "Success."),
    (
        "1",
        "A step failed, a service refused or was not there, or the host failed: a line on stderr says what, and why.",
    ),
    ("2", "Wrong arguments."),
    ("141", "Nobody reads the output any more (SIGPIPE)."),
];

/// Variable of the commands that have a control socket.
pub(super) const RUNTIME: Term = (
    "XDG_RUNTIME_DIR",
    "Folder of the user's own service, if --control does not name another.",
);

/// Control sockets, in the order in which they are tried.
pub(super) const SOCKETS: [Term; 2] = [
    (
        "$XDG_RUNTIME_DIR/vhca/control.sock, /tmp/vhca-UID/control.sock",
        "Control socket of the user's own service.",
    ),
    (
        "/run/vhca/control.sock",
        "Control socket of the packaged service.",
    ),
];

/// Logging of the commands that log.
const LOG: Term = (
    "RUST_LOG",
    "What is logged on stderr, such as warn, or vhca::drop_log=warn.",
);

/// Exit status of what is given by options or by a script.
const WRONG_OPTIONS: Term = (
    "2",
    "Wrong arguments, options that exclude each other or name what the fabric has not, or a wrong line of a file of options.",
);

/// Exit status of commands whose service does not answer.
const SILENT: Term = (
    "4",
    "The service does not answer: its process is stopped, or has been busy for half a minute.",
);

const PAGE: Page = Page {
    command: "",
    exit: &[],
    environment: &[],
    files: &[],
    examples: &[],
    see: &[],
};

/// Returns the page of a command by the words with which it is called.
pub(super) fn of(path: &str) -> &'static Page {
    let command = path.split(' ').nth(1).unwrap_or_default();
    let page = PAGES.iter().find(|page| page.command == command);
    page.unwrap_or(&PAGE)
}

/// The pages, in the order of the commands.
pub(super) const PAGES: &[Page] = &[
    Page {
        files: &[
            ("/etc/vhca/vhca.toml", "Options of the packaged service."),
            (
                "/usr/share/doc/vhca",
                "Documents, and an example of the options.",
            ),
        ],
        examples: &[
            ("vhca demo", "Show what the fabric does, in virtual time."),
            (
                "vhca serve --vfs 16 --guests &",
                "Start a fabric of two switches with 64 VFs.",
            ),
            (
                "vhca show vfs --wait-up",
                "See the VFs, once their ports are up.",
            ),
            ("vhca stop", "Stop it."),
        ],
        see: &["demo", "serve", "show", "why", "set", "run", "lab"],
        ..PAGE
    },
    Page {
        command: "demo",
        environment: &[LOG],
        examples: &[(
            "vhca demo --capture demo.pcap",
            "Leave all packets to Wireshark.",
        )],
        see: &["lab", "bench"],
        ..PAGE
    },
    Page {
        command: "bench",
        examples: &[
            (
                "vhca bench --case rc-write --runs 3",
                "Measure RDMA writes three times.",
            ),
            ("vhca bench embed", "Measure devices that a VMM links."),
        ],
        see: &["drain"],
        ..PAGE
    },
    Page {
        command: "drain",
        examples: &[(
            "vhca drain --conversations 10000",
            "Run ten thousand conversations.",
        )],
        see: &["bench"],
        ..PAGE
    },
    Page {
        command: "serve",
        exit: &[
            ("0", "Stopped by vhca stop, SIGTERM or SIGINT."),
            WRONG_OPTIONS,
            (
                "159",
                "The sandbox ended the service because of a system call that is not on its list; the log has its number.",
            ),
        ],
        environment: &[
            LOG,
            (
                "NOTIFY_SOCKET, LISTEN_FDS",
                "systemd is told when all sockets are open, and may have made them.",
            ),
        ],
        files: &[
            (
                "/etc/vhca/vhca.toml",
                "Options of the packaged service (vhca.service).",
            ),
            (
                "/usr/share/doc/vhca/examples/vhca.toml",
                "An example of a file for --config.",
            ),
        ],
        examples: &[
            (
                "vhca serve --vfs 16 --guests",
                "Two switches, four hosts of 16 VFs, a guest's software on each VF.",
            ),
            (
                "vhca serve --vfio-user vfs --access all=:kvm",
                "A socket for each VF, for VMMs of the group kvm.",
            ),
            ("vhca serve --verbs", "VFs for programs on libibverbs."),
            (
                "vhca serve --sm none",
                "No subnet manager: one comes by vhca run -- opensm.",
            ),
            (
                "vhca serve --config /etc/vhca/vhca.toml --vfs 8",
                "The options of a file but for one.",
            ),
        ],
        see: &[
            "show",
            "why",
            "set",
            "run",
            "qemu-args",
            "stop",
            "opensm(8)",
            "systemd.socket(5)",
        ],
    },
    Page {
        command: "show",
        exit: &[
            (
                "1",
                "VFs that --wait-up waited for are not up; or a service refused or was not there.",
            ),
            SILENT,
        ],
        examples: &[
            (
                "vhca show vfs --wait-up 10",
                "Wait ten seconds at most until all VFs are up.",
            ),
            (
                "vhca show fabric --problems",
                "Links that are down, narrow or slow.",
            ),
            (
                "vhca show drops --host H1-1",
                "The packets that one host lost, and why.",
            ),
            (
                "vhca show qps --vf H1-1/3 --json",
                "The queue pairs of a VF for a program.",
            ),
        ],
        see: &["why", "metrics", "set", "capture"],
        ..PAGE
    },
    Page {
        command: "why",
        exit: &[
            ("0", "No fault."),
            (
                "1",
                "There is a fault; or a service refused or was not there.",
            ),
            SILENT,
        ],
        examples: &[
            (
                "vhca why H1-1/3",
                "The fault of a VF, what was seen of it, and what to do next.",
            ),
            ("vhca why all", "All VFs with a fault, a line each."),
            (
                "vhca why H1-1/1 H2-1/3",
                "What keeps two VFs from talking to each other.",
            ),
            ("vhca why H1-1/all --json", "Those of a host for a program."),
        ],
        see: &["show", "set", "metrics"],
        ..PAGE
    },
    Page {
        command: "set",
        examples: &[
            (
                "vhca set vf H1-1/3 port_guid sm",
                "Have the subnet manager give the VF a GUID.",
            ),
            (
                "vhca set vf H1-1/3 pkeys 0x8001 0xffff",
                "Put it into two partitions.",
            ),
            (
                "vhca set vf H1-1/3 limits rate=1000 weight=4",
                "Let it send 1,000 MADs a second, and four times its share of bytes.",
            ),
            (
                "vhca set vf H1-1/3 rights perf_mgt vendor",
                "Let it ask for counters, and use vendors' classes.",
            ),
            (
                "vhca set vf H1-1/3 sidr 192.0.2.7",
                "Have it found by rdma_cm at an IP address.",
            ),
            (
                "vhca set vf H1-1/all state disable",
                "Take the ports of a host's VFs down.",
            ),
            ("vhca set link H1-1/1 down", "Plug a cable out."),
            (
                "vhca set link S1 S2 loss=1% delay=10us",
                "Lose every hundredth packet between two switches, and take longer.",
            ),
            (
                "vhca set trunk H1/1 tls:spine-2:18600",
                "Move a host to another site, amid its traffic.",
            ),
        ],
        see: &["clear", "show", "why"],
        ..PAGE
    },
    Page {
        command: "clear",
        examples: &[(
            "vhca clear link S1 S2",
            "End the faults of all links between two switches.",
        )],
        see: &["set"],
        ..PAGE
    },
    Page {
        command: "sm",
        examples: &[(
            "vhca sm sweep",
            "Have the subnet manager look at all nodes and their tables at once, and mend what differs.",
        )],
        see: &["show", "serve"],
        ..PAGE
    },
    Page {
        command: "capture",
        exit: &[(
            "1",
            "The service ended before the capture had all that was asked for; or it refused or was not there.",
        )],
        examples: &[
            (
                "vhca capture --seconds 10 up.pcap",
                "All packets of the fabric for ten seconds.",
            ),
            (
                "vhca capture --tap H1-1/vf3 --count 100 vf.pcap",
                "A hundred packets between a VF and its PF.",
            ),
            (
                "vhca capture - | wireshark -k -i -",
                "Watch them as they come.",
            ),
        ],
        see: &["show", "wireshark(1)", "tshark(1)"],
        ..PAGE
    },
    Page {
        command: "guest",
        exit: &[(
            "1",
            "A guest could not do it; or a service refused or was not there.",
        )],
        examples: &[
            (
                "vhca guest all join ff12::1",
                "Put all guests into a multicast group.",
            ),
            (
                "vhca guest H1-1/1 send ff12::1 hello",
                "Send a message to it.",
            ),
            ("vhca guest all leave ff12::1", "Leave it."),
            (
                "vhca guest H1-1/1 query fe80::14:500:0:5",
                "Ask the SA for a path.",
            ),
            ("vhca guest H1-1/all paths --count 100", "Ask for many."),
            (
                "vhca guest all status",
                "What they have, and what they received.",
            ),
        ],
        see: &["serve", "show"],
        ..PAGE
    },
    Page {
        command: "metrics",
        examples: &[
            ("vhca metrics --by total", "One sum for each metric."),
            ("vhca metrics --vf H1-1/3", "Those of a VF."),
        ],
        see: &["show", "serve"],
        ..PAGE
    },
    Page {
        command: "stop",
        examples: &[(
            "vhca stop",
            "Stop the service, which gives GUIDs and memberships back.",
        )],
        see: &["serve"],
        ..PAGE
    },
    Page {
        command: "qemu-args",
        examples: &[(
            "vhca qemu-args H1-1/1 --memory 512",
            "The arguments for a guest of 512 MiB with one VF.",
        )],
        see: &["serve", "lab", "qemu-system-x86_64(1)"],
        ..PAGE
    },
    Page {
        command: "run",
        exit: &[
            ("126", "The program is there and cannot be run."),
            (
                "127",
                "The program is not there. Any other status is that of the program.",
            ),
        ],
        environment: PROGRAM,
        files: PROGRAM_FILES,
        examples: &[
            (
                "vhca run -- opensm -f opensm.log",
                "OpenSM on the management host.",
            ),
            (
                "vhca run --node H2-1 -- ibnetdiscover",
                "The fabric as another host sees it.",
            ),
            (
                "vhca run --node H1-1/3 -- ib_write_bw",
                "A program on libibverbs on a VF (vhca serve --verbs).",
            ),
        ],
        see: &["env", "serve", "opensm(8)", "ibstat(8)"],
    },
    Page {
        command: "env",
        environment: PROGRAM,
        files: PROGRAM_FILES,
        examples: &[(
            "eval \"$(vhca env --node H1-1)\"; ibstat",
            "Have all programs of a shell use a host's port.",
        )],
        see: &["run", "serve"],
        ..PAGE
    },
    Page {
        command: "trunk",
        examples: &[
            (
                "vhca trunk keygen leaf.key",
                "Make the private key of a site, and print the line for the peers of the others.",
            ),
            ("vhca trunk public leaf.key", "Print that line again."),
            (
                "vhca serve --trunk S2/5=tls:spine:18600 --trunk-key leaf.key --trunk-peers peers",
                "Connect with it to a site whose public key is in peers.",
            ),
        ],
        see: &["serve"],
        ..PAGE
    },
    Page {
        command: "vfio",
        exit: &[(
            "2",
            "Wrong arguments, or VFIO does not give the function: a line on stderr says what is in the way, and the next step.",
        )],
        files: &[(
            "/dev/vfio/GROUP",
            "IOMMU group of the function; its owner needs no root.",
        )],
        examples: &[
            (
                "vhca vfio 0000:01:00.0 tour",
                "Everything that the VF can do by itself.",
            ),
            (
                "vhca vfio 0000:01:00.0 paths 4 fe80::2:c903:0:301",
                "The port, and paths to a LID and a GID.",
            ),
            (
                "vhca vfio 0000:01:00.0 join ff12::4242 --hold 60",
                "Be a member of a group for a minute.",
            ),
            (
                "vhca vfio 0000:01:00.0 ping -n 10000",
                "Wait for ibv_ud_pingpong -n 10000 THIS-HOST on another host.",
            ),
            (
                "vhca vfio 0000:01:00.0 connect fe80::2:c903:0:301",
                "Connect to a VF where vhca vfio BDF connect waits.",
            ),
        ],
        see: &["lspci(8)"],
        ..PAGE
    },
    Page {
        command: "lab",
        environment: &[(
            "VHCA_GUEST_CACHE",
            "Folder of the guests, if --cache does not name another.",
        )],
        files: &[(
            "~/.cache/vhca-guest",
            "Kernels and programs of the guests, from tests/guest/prepare.sh.",
        )],
        examples: &[
            ("vhca lab", "Boot two guests on two hosts."),
            (
                "vhca lab --guest H1-1/1,H1-1/2 --kernel 6.12",
                "Boot them on one host, with another kernel.",
            ),
        ],
        see: &["console", "serve"],
        ..PAGE
    },
    Page {
        command: "console",
        examples: &[("vhca console H1-1/1", "A root shell in a guest of the lab.")],
        see: &["lab"],
        ..PAGE
    },
    Page {
        command: "generate",
        examples: &[
            (
                "vhca generate man /usr/local/share/man/man1",
                "Write the man pages.",
            ),
            (
                "vhca generate completions fish > vhca.fish",
                "Write the completions of a shell.",
            ),
        ],
        ..PAGE
    },
    Page {
        command: "replay",
        exit: &[("2", "Wrong arguments, or a wrong line of the script.")],
        examples: &[(
            "vhca replay",
            "Run a script from stdin; docs/replay.md has its format.",
        )],
        see: &["bench"],
        ..PAGE
    },
];

/// Variables that programs are run with.
const PROGRAM: &[Term] = &[
    (
        "LD_PRELOAD",
        "Set for the program: the preload library before others.",
    ),
    (
        "VHCA_UMAD_SOCKET, VHCA_UMAD_NODE, VHCA_UMAD_DEVICE",
        "Set for the program: the socket of the service, the adapters, and the name of the device of libibverbs.",
    ),
    (
        "VHCA_QUIET",
        "With 1 no line on stderr says why a program has no RDMA device.",
    ),
    (
        "ASAN_OPTIONS",
        "Gets verify_asan_link_order=0 for a program that needs libasan.",
    ),
    (
        "VHCA_SYSFS",
        "Printed by `vhca env`: the folder with sys and dev, for programs that make their own system calls.",
    ),
];

/// Files of programs.
const PROGRAM_FILES: &[Term] = &[
    ("/usr/lib/vhca/libvhca_umad.so", "The preload library."),
    (
        "control.umad, control.verbs",
        "The sockets for programs, beside the control socket.",
    ),
];
