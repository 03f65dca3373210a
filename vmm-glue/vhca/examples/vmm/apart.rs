//! VMs of two VMMs, each in a process of its own: their guests go on the tour together, and the VMMs pass their numbers on.
#![cfg(all(feature = "remote", feature = "trunk"))]

use std::error::Error;
use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;

use kvm_ioctls::Kvm;
use vhca::emulated::{Duration, VfOptions};
use vhca::trunk::{Security, TrunkConfig, TrunkPeer, TrunkWay};
use vhca::world::World;
use vhca::{kvm, remote};
use vm_memory::{FileOffset, GuestAddress, GuestMemoryAtomic, GuestMemoryMmap};
use vmm_sys_util::tempfile::TempFile;

use crate::console::{Console, Running};
use crate::modes::{TOUR, Verdict};
use crate::payload::Payload;
use crate::tour::{MEMORY, print, rounds};
use crate::vm::Vm;
use crate::{Host, bench, fabric, memory};

/// Argument of the tour: the fabric has fewer nodes than the tour of one process looks for.
const SMALL: u64 = 2;

/// Time in which a VMM that has made a socket listens on it.
const MOMENT: Duration = Duration::from_millis(200);

/// Goes on the tour with the VF of a running service at this socket, with the VMM that says the same path.
pub(crate) fn tour_of_remote(kvm: &Kvm, socket: &str, path: &str) -> Verdict {
    let (mut other, nth) = meet(path.as_ref())?;
    let guest = start_remote(kvm, socket, &Payload::build()?, [TOUR, SMALL | nth])?;
    tour(guest, &mut other)
}

/// Measures a VF of a running service beside one of this process.
pub(crate) fn bench_of_remote(kvm: Kvm, socket: &str, is_json: bool) -> Verdict {
    let (world, at) = fabric::of(&["bench"])?;
    let host = Host::new(kvm, world, at)?;
    let boot = |arguments| start_remote(&host.kvm, socket, &host.payload, arguments)?.end();
    bench::bench_remote(&host, boot, is_json)
}

/// Starts a VM with the VF of a running service.
fn start_remote(
    kvm: &Kvm,
    socket: &str,
    payload: &Payload,
    arguments: [u64; 2],
) -> Result<Running, Box<dyn Error>> {
    let memory = shared_memory()?;
    let mut vm = Vm::new(kvm, memory.clone(), payload, arguments)?;
    let interrupts = Arc::new(kvm::Msi::new(Arc::clone(&vm.fd)));
    let doorbells = Arc::new(kvm::SignalledDoorbells::new(Arc::clone(&vm.fd)));
    let device = remote::attach(socket, memory, interrupts, doorbells)?;
    device.on_failure(|error| eprintln!("{error}: attach anew once the service is back"));
    let (mut console, guest) = Console::new(device.clone());
    std::thread::spawn(move || {
        let measured = vm.run(device, &mut console);
        console.end(measured);
    });
    Ok(guest)
}

/// Goes on the tour with a VF of a world whose host is one of the fabric at this address, with the VMM that says the same path.
pub(crate) fn tour_by_trunk(kvm: Kvm, address: &str, path: &str) -> Verdict {
    let (mut other, nth) = meet(path.as_ref())?;
    let options = VfOptions::default();
    let (mut world, at, port) = World::with_one_vf_for_a_trunk(memory(MEMORY)?, &options)?;
    // The VM gets its own.
    world.remove_vf(at.host, crate::VFS[0])?;
    let trunk = TrunkConfig {
        site: format!("vmm-{}", std::process::id()).parse()?,
        way: TrunkWay::Connect(address.parse()?),
        timeout: Duration::from_secs(5),
        security: Security::Plain,
        peer: TrunkPeer::Fabric,
    };
    world.add_trunk(port, trunk)?;
    let host = Host::new(kvm, world, [at.host; crate::VFS.len()])?;
    let memory = memory(MEMORY)?;
    let guest = host.start((0, false), memory.clone(), memory, [TOUR, SMALL | nth])?;
    tour(guest, &mut other)
}

fn tour(guest: Running, other: &mut UnixStream) -> Verdict {
    rounds(
        || {
            other.write_all(&guest.wait()?.to_le_bytes())?;
            let mut others = [0; 4];
            other.read_exact(&mut others)?;
            guest.order(u32::from_le_bytes(others));
            Ok(())
        },
        || Ok(()),
    )?;
    print(&guest.end()?);
    Ok(true)
}

/// Connects to the VMM that waits at this path, or waits for one there. Returns the place of this one's guest on the tour.
fn meet(path: &Path) -> Result<(UnixStream, u64), Box<dyn Error>> {
    loop {
        if let Ok(other) = UnixStream::connect(path) {
            return Ok((other, 1));
        }
        match UnixListener::bind(path) {
            Ok(listener) => {
                let (other, _) = listener.accept()?;
                std::fs::remove_file(path)?;
                return Ok((other, 0));
            }
            // The other one may be about to listen there, or an earlier one has left the file.
            Err(error) if error.kind() == ErrorKind::AddrInUse => {
                std::thread::sleep(MOMENT);
                if let Ok(other) = UnixStream::connect(path) {
                    return Ok((other, 1));
                }
                std::fs::remove_file(path)?;
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// Returns memory in a file, which a service maps, too.
fn shared_memory() -> Result<GuestMemoryAtomic<GuestMemoryMmap>, Box<dyn Error>> {
    let file: File = TempFile::new_in("/dev/shm".as_ref())?.into_file();
    file.set_len(MEMORY as u64)?;
    let region = (GuestAddress(0), MEMORY, Some(FileOffset::new(file, 0)));
    Ok(GuestMemoryAtomic::new(
        GuestMemoryMmap::from_ranges_with_files([region])?,
    ))
}
