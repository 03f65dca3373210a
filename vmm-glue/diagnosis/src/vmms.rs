//! VFs that are offered to VMMs and that no guest uses.

use ib_vtime::{Duration, Instant};

use crate::fault::Fault;
use crate::shell::quoted;
use crate::snapshot::{Memory, Offer, Vmm};

/// Time that a driver may leave events waiting: far longer than the interrupt of an emulated CPU takes.
const UNRESPONSIVE: Duration = Duration::from_secs(5);

impl Offer {
    /// Returns the reason for which the guest of the VF cannot use it, if it cannot. The VF's name is `HOST/N`.
    #[must_use]
    pub fn why_unused(&self, name: &str, now: Instant) -> Option<Fault> {
        let Some(vmm) = &self.vmm else {
            if let Some(path) = &self.lost_socket {
                let fault = Fault::new("socket_removed", "the file of the VF's socket is gone");
                let fault = fault.seen(format!("no VMM can connect to {path}"));
                return Some(
                    fault.next("vhca stop, and start the service again: it makes the sockets anew"),
                );
            }
            let fault = Fault::new("no_vmm", "no VMM has the VF")
                .seen(format!(
                    "{} had it so far, {} were turned away",
                    self.vmms, self.refused
                ))
                .next(format!("vhca qemu-args {}", quoted(name)))
                .remark("start a guest with what that prints");
            return Some(fault);
        };
        let Memory {
            shared, unshared, ..
        } = self.memory;
        if unshared > shared {
            let fault = Fault::new(
                "memory_not_shared",
                "the VMM does not share the guest's memory",
            )
            .seen(format!("{unshared} bytes are not shared, {shared} are"))
            .next("have QEMU use -object memory-backend-memfd,share=on: see vhca qemu-args");
            return Some(fault);
        }
        if vmm.vectors == 0 {
            let fault = Fault::new("no_driver", "no driver in the guest uses the VF")
                .seen("the guest has set up no interrupts for it")
                .next(
                    "wait for the guest to boot; in it, modprobe mlx4_ib, and see dmesg \
                     (if the guest was saved and restored: docs/vfio-user.md, \"Resets, and guests that were saved\")",
                );
            return Some(fault);
        }
        if !vmm.has_driver {
            let fault = Fault::new(
                "driver_lost_track",
                "the VF was reset, and the driver in the guest has not set it up anew",
            )
            .seen("interrupts are set up for it, but no commands")
            .next("wait ten seconds: the driver looks every five; then see dmesg in the guest");
            return Some(fault);
        }
        unresponsive(vmm, now).or_else(|| memory_quota(&self.memory))
    }
}

/// A driver that leaves the VF's events waiting.
fn unresponsive(vmm: &Vmm, now: Instant) -> Option<Fault> {
    let waiting = now.saturating_duration_since(vmm.events_waiting_since?);
    if waiting < UNRESPONSIVE {
        return None;
    }
    let summary = "the guest takes no events of the VF: it is stopped, or its driver is dead";
    let fault = Fault::new("guest_not_responding", summary).seen(format!(
        "the oldest event has waited {:.1} s for the driver",
        waiting.as_secs_f64()
    ));
    Some(match vmm.pid {
        Some(pid) => fault
            .next(format!("kill -CONT {pid}"))
            .remark("if that does not help, cont in QEMU's monitor, or see the guest's console"),
        None => fault.next("let the VMM go on, or see the guest's console"),
    })
}

/// The device has touched all memory that it may, and was to touch more.
fn memory_quota(memory: &Memory) -> Option<Fault> {
    let most = memory.most.filter(|_| memory.refused > 0)?;
    let summary = "the VF has all that it may have: memory of its guest";
    let fault = Fault::new("quota_reached", summary)
        .seen(format!("{} of {most} bytes are touched", memory.touched))
        .seen(format!("{} accesses failed", memory.refused))
        .next("have guest_memory (vhca serve --guest-memory) be what the guest has");
    Some(fault)
}
