//! Figures of a guest under TCG, for BENCHMARKS.md. They mean something on an idle machine, with this test alone:
//! `cargo test -p vhca-tests --test guest figures -- --nocapture`.

use std::time::{Duration, Instant};

use crate::fabric::{Fabric, Manager};
use crate::guest::Boot;
use crate::ip::{address, bring_up, pair};

#[test]
fn figures_of_a_boot_and_of_datagrams() {
    let fabric = Fabric::new(Manager::Lite, &["--topology", "two-switch", "--vfs", "1"]);
    let begun = Instant::now();
    let mut guest = Boot::new("6.1", fabric.device("H1-2", 1)).start(fabric.dir(), "boot");
    let up = begun.elapsed();
    guest.wait_for_port();
    println!(
        "boot to the first command: {:.1} s; to the port active: {:.1} s",
        up.as_secs_f32(),
        begun.elapsed().as_secs_f32()
    );
    let begun = Instant::now();
    guest.told(
        "modprobe -r mlx4_ib && modprobe -r mlx4_core && modprobe mlx4_core && modprobe mlx4_ib",
    );
    guest.wait_for_port();
    println!(
        "rmmod, modprobe, port active: {:.1} s",
        begun.elapsed().as_secs_f32()
    );
    drop(guest);

    let mut guests = fabric.guests("6.1", [("H1-1", 1), ("H2-1", 1)]);
    bring_up(&mut guests);
    let [first, second] = &mut guests;
    let server = "ibv_ud_pingpong -s 256 -n 2000";
    let told = pair(first, second, server, &format!("{server} {}", address(1)));
    println!(
        "ibv_ud_pingpong, 256 bytes: {}",
        told.lines().last().unwrap_or_default()
    );
    let ping = first.told_within(
        Duration::from_secs(120),
        &format!("ping -A -q -c 2000 {}", address(1)),
    );
    println!(
        "ping over IPoIB: {}",
        ping.lines().last().unwrap_or_default()
    );
    let server = "ib_send_bw -c UD -s 256 -n 5000 -x 0";
    let told = pair(first, second, server, &format!("{server} {}", address(1)));
    println!("ib_send_bw, UD, 256 bytes:\n{told}");
}
