//! Figures of RDMA writes between two guests on their VFs, beside those on soft RoCE over a network card of QEMU, for
//! BENCHMARKS.md: `cargo test -p vhca-tests --test guest soft_roce -- --nocapture`.

use std::time::Duration;

use crate::effort::full;
use crate::fabric::{Fabric, Manager};
use crate::guest::{Boot, Guest};
use crate::ip::pair;

/// Time for a measurement: soft RoCE moves some MiB a second.
const LIMIT: Duration = Duration::from_secs(300);

/// Devices of a guest, by their options in perftest.
const DEVICES: [(&str, &str); 2] = [("VF", "-d mlx4_0"), ("soft RoCE", "-d rxe0 -x 1")];

/// A figure: the program, and the column of its table that counts.
struct Figure {
    program: String,
    column: usize,
    unit: &'static str,
}

fn figures() -> [Figure; 3] {
    let figure = |program: &str, size: u32, count: u32, column, unit| Figure {
        program: format!("{program} -F -s {size} -n {count}"),
        column,
        unit,
    };
    let bw = |size, count| figure("ib_write_bw", size, count, 3, "MB/s");
    [
        figure("ib_write_lat", 8, full(200, 2000), 4, "us"),
        bw(65_536, full(40, 400)),
        bw(1 << 20, full(10, 50)),
    ]
}

/// Reads a column of the last row of perftest's table.
fn column(told: &str, column: usize) -> f64 {
    let mut rows = told.lines().filter_map(|line| {
        let fields: Vec<f64> = line
            .split_whitespace()
            .map(|field| field.parse().ok())
            .collect::<Option<_>>()?;
        fields.get(column).copied()
    });
    rows.next_back()
        .unwrap_or_else(|| panic!("no table in {told}"))
}

/// Boots a guest on a VF, with a card on a network of two, and soft RoCE on the card.
fn guest(fabric: &Fabric, host: &str, place: usize, is_server: &str) -> Guest {
    let wire = fabric.dir().join("wire");
    let wire = wire.to_str().expect("a path in UTF-8");
    let backend = format!("stream,addr.type=unix,addr.path={wire},server={is_server}");
    let boot = Boot::new("6.1", fabric.device(host, 1));
    let boot = boot.with("--netdev").with(backend);
    let mut guest = boot.start(fabric.dir(), host);
    guest.wait_for_port();
    guest.told(&format!(
        "ip address add 10.9.0.{place}/24 dev eth0 && ip link set eth0 mtu 9000 up"
    ));
    guest.told("modprobe rdma_rxe && rdma link add rxe0 type rxe netdev eth0");
    guest
}

#[test]
fn rdma_writes_on_vfs_leave_those_on_soft_roce_behind() {
    let fabric = Fabric::new(Manager::Lite, &["--topology", "two-switch", "--vfs", "1"]);
    let mut second = guest(&fabric, "H2-1", 2, "on");
    let mut first = guest(&fabric, "H1-1", 1, "off");
    first.told_within(LIMIT, "until ping -q -c 1 -W 1 10.9.0.2; do :; done");
    for Figure {
        program,
        column: which,
        unit,
    } in figures()
    {
        // In turn: whatever else the machine does falls on both.
        let mut found = [Vec::new(), Vec::new()];
        for _ in 0..3 {
            for ((_, options), found) in DEVICES.iter().zip(&mut found) {
                let server = format!("{program} {options}");
                let client = format!("timeout 250 {server} 10.9.0.2");
                let told = pair(&mut first, &mut second, &server, &client);
                found.push(column(&told, which));
            }
        }
        let medians = found.map(|mut found| {
            found.sort_by(f64::total_cmp);
            found[found.len() / 2]
        });
        let [ours, theirs] = medians;
        for ((name, _), median) in DEVICES.iter().zip(medians) {
            println!("{program}: {median:.2} {unit} on {name}");
        }
        // Times are shown and not judged: guests that poll leave the service no processor where there are two.
        assert!(
            unit == "us" || ours > theirs,
            "{program}: {ours} {unit} against {theirs}"
        );
    }
}
