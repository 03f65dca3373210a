//! VFs that are offered to VMMs, for `vhca show` and `vhca why`.

use ib_vtime::{Duration, Instant};
use ib_wire::PortNum;

use super::Seat;
use crate::serve::why::Fault;
use crate::serve::{Lab, NamedVf};
use crate::shell::quoted;
use crate::show::{AwaitedRow, FaultCodes, PartitionRow, ProgramRow, SmRow, VmmRow, Vmms};
use vhca_vfio_user::MemoryStatistics;

/// How long a driver may leave events waiting: far longer than the interrupt of an emulated CPU takes.
const UNRESPONSIVE: Duration = Duration::from_secs(5);

impl Vmms for Lab {
    fn is_empty(&self) -> bool {
        self.seats().next().is_none()
    }

    fn of_host(&self, host: &str) -> Vec<VmmRow> {
        self.vmm_rows(Some(host))
    }

    fn faults_of(&self, host: &str) -> FaultCodes {
        let host = self.pf_host(host);
        host.map(|host| self.fault_codes(host)).unwrap_or_default()
    }

    fn sa_answer_age(&self, host: &str, port: PortNum) -> Option<Duration> {
        let host = self.pf_host(host).ok()?;
        Lab::sa_answer_age(self, host.id.port(port.0))
    }

    fn programs_of(&self, host: &str) -> Vec<ProgramRow> {
        self.program_rows(host)
    }

    fn subnet_managers(&self) -> Vec<SmRow> {
        self.sm_rows()
    }

    fn partitions(&self) -> Vec<PartitionRow> {
        self.partition_rows()
    }

    fn awaited(&self) -> Vec<AwaitedRow> {
        self.awaited.rows(None)
    }
}

impl Lab {
    /// The VFs that are offered to VMMs: of one host, or of all.
    #[must_use]
    pub fn vmm_rows(&self, host: Option<&str>) -> Vec<VmmRow> {
        let now = self.world().now();
        let seats = self
            .seats()
            .filter(|seat| host.is_none_or(|name| name == seat.host_name));
        seats.map(|seat| self.vmm_row(seat, now)).collect()
    }

    fn vmm_row(&self, seat: &Seat, now: Instant) -> VmmRow {
        let memory = seat.memory.statistics();
        let vmm = seat.vmm.as_ref();
        let commands = vmm.map(|vmm| vmm.statistics).unwrap_or_default();
        VmmRow {
            host: seat.host_name.clone(),
            vf: seat.vf.get(),
            pid: vmm.and_then(|vmm| u32::try_from(vmm.pid?.as_raw_nonzero().get()).ok()),
            uid: vmm.and_then(|vmm| Some(vmm.uid?.as_raw())),
            since: vmm.map(|vmm| now - vmm.since),
            vectors: vmm.map_or(0, |vmm| vmm.vectors),
            shared: memory.shared,
            touched: memory.touched,
            unshared: memory.remote,
            resets: self
                .world()
                .device(seat.at)
                .map_or(0, |device| device.resets()),
            commands: (commands.commands, commands.errors),
            vmms: seat.vmms,
            refused: seat.refused,
            socket: seat
                .socket
                .as_ref()
                .map_or_else(String::new, |path| path.display().to_string()),
        }
    }

    /// Why the guest of a VF that is offered to VMMs cannot use it.
    pub(in crate::serve) fn why_unused(&self, vf: &NamedVf) -> Option<Fault> {
        let seat = self.seat(vf)?;
        let Some(vmm) = &seat.vmm else {
            let name = format!("{}/{}", vf.host_name, vf.vf.get());
            let fault = Fault::new("no_vmm", "no VMM has the VF")
                .seen(format!(
                    "{} had it so far, {} were turned away",
                    seat.vmms, seat.refused
                ))
                .next(format!("vhca qemu-args {}", quoted(&name)))
                .remark("start a guest with what that prints");
            return Some(fault);
        };
        let memory = seat.memory.statistics();
        let MemoryStatistics { shared, remote, .. } = memory;
        if remote > shared {
            let fault = Fault::new(
                "memory_not_shared",
                "the VMM does not share the guest's memory",
            )
            .seen(format!("{remote} bytes are not shared, {shared} are"))
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
        if !self.has_driver(seat) {
            let fault = Fault::new(
                "driver_lost_track",
                "the VF was reset, and the driver in the guest has not set it up anew",
            )
            .seen("interrupts are set up for it, but no commands")
            .next("wait ten seconds: the driver looks every five; then see dmesg in the guest");
            return Some(fault);
        }
        self.why_unresponsive(seat)
            .or_else(|| memory_quota(&memory))
    }

    /// A driver that leaves the VF's events waiting.
    fn why_unresponsive(&self, seat: &Seat) -> Option<Fault> {
        let device = self.world().device(seat.at)?;
        let since = device.function().events_waiting_since()?;
        let waiting = self.world().now().saturating_duration_since(since);
        if waiting < UNRESPONSIVE {
            return None;
        }
        let summary = "the guest takes no events of the VF: it is stopped, or its driver is dead";
        let fault = Fault::new("guest_not_responding", summary).seen(format!(
            "the oldest event has waited {:.1} s for the driver",
            waiting.as_secs_f64()
        ));
        let pid = seat.vmm.as_ref().and_then(|vmm| vmm.pid);
        Some(match pid {
            Some(pid) => fault
                .next(format!("kill -CONT {}", pid.as_raw_nonzero()))
                .remark(
                    "if that does not help, cont in QEMU's monitor, or see the guest's console",
                ),
            None => fault.next("let the VMM go on, or see the guest's console"),
        })
    }

    fn has_driver(&self, seat: &Seat) -> bool {
        let device = self.world().device(seat.at);
        device.is_some_and(|device| device.function().has_driver())
    }
}

/// The device has touched all memory that it may, and was to touch more.
fn memory_quota(memory: &MemoryStatistics) -> Option<Fault> {
    let most = memory.most.filter(|_| memory.refused > 0)?;
    let summary = "the VF has all that it may have: memory of its guest";
    let fault = Fault::new("quota_reached", summary)
        .seen(format!("{} of {most} bytes are touched", memory.touched))
        .seen(format!("{} accesses failed", memory.refused))
        .next("have guest_memory (vhca serve --guest-memory) be what the guest has");
    Some(fault)
}
