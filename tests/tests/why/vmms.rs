//! Faults of VMMs and of drivers in their guests, by the client library of the protocol and a driver of ours.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use vfio_user::Client;
use vhca_tests::mlx4_driver::{Bus, Driver, GuestMemory, VmmBus};

use crate::bench::{Bench, Case, Cure, FABRIC};
use crate::report::Report;

const VF: &str = "node1 HCA-1/1";

/// Pages of a guest's memory.
const PAGES: usize = 2048;

/// Bytes of one that runs no driver.
const MEMORY: u64 = 1 << 20;

/// How often a guest that nothing happens to does what is due.
const LOOK: Duration = Duration::from_millis(20);

/// What a guest is to do from now on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    /// Serve the driver, as guests do.
    Run,
    /// Nothing: the VMM is stopped, or the driver dead.
    Stand,
    /// Reset the VF under the driver, and nothing more.
    Reset,
    /// Start the driver anew.
    Restart,
}

/// A VMM with a guest and its driver, on a thread of its own.
struct Guest {
    orders: Option<SyncSender<Order>>,
    thread: Option<JoinHandle<()>>,
}

impl Guest {
    fn boot(socket: PathBuf) -> Self {
        let (orders, order) = sync_channel(0);
        let thread = std::thread::spawn(move || live(&socket, &order));
        Self {
            orders: Some(orders),
            thread: Some(thread),
        }
    }

    /// Returns when the guest has the order: from then on it does nothing by the one before.
    fn order(&self, order: Order) {
        let orders = self.orders.as_ref().unwrap();
        orders.send(order).expect("the guest lives");
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        self.orders = None;
        let ended = self.thread.take().map(JoinHandle::join);
        if !std::thread::panicking() {
            assert!(
                ended.is_some_and(|ended| ended.is_ok()),
                "the guest fared ill"
            );
        }
    }
}

fn live(socket: &Path, orders: &Receiver<Order>) {
    let memory = GuestMemory::shared(PAGES).unwrap();
    let mut bus = VmmBus::attach(socket, memory.clone()).unwrap();
    let mut driver = Driver::probe(&mut bus, memory).unwrap();
    let mut order = Order::Run;
    loop {
        match orders.recv_timeout(LOOK) {
            Ok(new) => order = new,
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        match order {
            Order::Run => driver.serve(&mut bus).unwrap(),
            Order::Stand => {}
            Order::Reset => {
                bus.reset();
                order = Order::Stand;
            }
            Order::Restart => {
                driver = driver.restart(&mut bus).unwrap();
                order = Order::Run;
            }
        }
    }
}

/// A VMM that gives its VF memory, and does nothing else.
fn attach(socket: &Path, memory: &impl AsRawFd) -> Client {
    let mut client = Client::new(socket).unwrap();
    client.dma_map(0, 0, MEMORY, memory.as_raw_fd()).unwrap();
    client
}

pub(crate) fn run(report: &Report) {
    let mut bench = Bench::new(report);
    let folder = bench.path().join("vf");
    let socket = folder.join("node1%20HCA-1-vf1.sock");
    let arguments = [FABRIC, &["--vfs", "1", "--vfio-user", "vf"]].concat();
    bench.restart(&arguments);
    socket_removed(&mut bench, &arguments);
    let mut guest = None;
    bench.case(Case {
        fault: "VF without a VMM",
        vf: VF,
        code: "no_vmm",
        next: "vhca qemu-args 'node1 HCA-1/1'",
        cure: Cure::Words(&mut |bench| {
            let arguments = bench.run("vhca qemu-args 'node1 HCA-1/1'");
            assert!(
                arguments.contains(&*socket.to_string_lossy()),
                "{arguments}"
            );
            guest = Some(Guest::boot(socket.clone()));
        }),
    });
    let guest = guest.unwrap();
    drivers(&mut bench, &guest);
    drop(guest);

    let memory = memfd_create("guest", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&memory, MEMORY).unwrap();
    // What is behind this file no other process can map.
    let closed = File::open("/proc/self/status").unwrap();
    no_driver(
        &mut bench,
        attach(&socket, &memory),
        &socket,
        "VMM whose guest has no driver",
        "no_driver",
    );
    let fault = "VMM that does not share the guest's memory";
    no_driver(
        &mut bench,
        attach(&socket, &closed),
        &socket,
        fault,
        "memory_not_shared",
    );
}

/// A socket's file that was removed before a VMM connected.
fn socket_removed(bench: &mut Bench<'_>, arguments: &[&str]) {
    bench.run("rm vf/node1%20HCA-2-vf1.sock");
    bench.case(Case {
        fault: "socket of a VF removed",
        vf: "node1 HCA-2/1",
        code: "socket_removed",
        next: "start the service again",
        cure: Cure::Told("no_vmm", &mut |bench| bench.restart(arguments)),
    });
}

/// Drivers that were reset, or that take no events.
fn drivers(bench: &mut Bench<'_>, guest: &Guest) {
    guest.order(Order::Reset);
    bench.case(Case {
        fault: "VF reset under its driver",
        vf: VF,
        code: "driver_lost_track",
        next: "dmesg",
        cure: Cure::Words(&mut |_| guest.order(Order::Restart)),
    });
    guest.order(Order::Stand);
    bench.run("vhca set link 'node1 HCA-1/1' down && vhca set link 'node1 HCA-1/1' up");
    bench.case(Case {
        fault: "guest stopped, or its driver dead",
        vf: VF,
        code: "guest_not_responding",
        next: "kill -CONT",
        cure: Cure::Words(&mut |_| guest.order(Order::Run)),
    });
}

/// A VMM in whose place one comes with a guest and its driver.
fn no_driver(
    bench: &mut Bench<'_>,
    client: Client,
    socket: &Path,
    fault: &'static str,
    code: &'static str,
) {
    let mut client = Some(client);
    let mut guest = None;
    bench.case(Case {
        fault,
        vf: VF,
        code,
        next: match code {
            "no_driver" => "modprobe mlx4_ib",
            _ => "share=on",
        },
        cure: Cure::Words(&mut |bench| {
            drop(client.take());
            assert!(bench.wait_for(VF, "no_vmm").is_ok());
            guest = Some(Guest::boot(socket.to_owned()));
        }),
    });
    drop(guest);
    assert!(bench.wait_for(VF, "no_vmm").is_ok());
}
