//! VFs that are offered to VMMs, for `vhca show` and `vhca why`.

use emulated_hca::{LinkId, NodeId};
use ib_vtime::{Duration, Instant};
use ib_wire::PortNum;
use vhca::world::HostFunction;
use vhca_diagnosis::{Memory, Offer};

use super::seat::Seat;
use crate::serve::inventory::NamedVf;
use crate::serve::lab::Lab;
use crate::show::{AwaitedRow, FaultCodes, PartitionRow, ProgramRow, SmRow, VmmRow, Vmms};
use vhca::world::OutsideHca;

impl Vmms for Lab {
    fn is_empty(&self) -> bool {
        self.seats().next().is_none()
    }

    fn of_host(&self, host: &str) -> Vec<VmmRow> {
        self.vmm_rows(Some(host))
    }

    fn planned_faults(&self, link: LinkId) -> Option<String> {
        self.cables.planned(link).map(ToString::to_string)
    }

    fn outside(&self, node: NodeId) -> Option<&dyn OutsideHca> {
        self.world().outside_hca(node)
    }

    fn is_bare(&self, node: NodeId) -> bool {
        self.inventory.is_bare(node)
    }

    fn faults_of(&self, host: &str) -> FaultCodes {
        let host = self.inventory.pf_host(host);
        host.map(|host| self.fault_codes(host)).unwrap_or_default()
    }

    fn sa_answer_age(&self, host: &str, port: PortNum) -> Option<Duration> {
        let host = self.inventory.pf_host(host).ok()?;
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
        self.inventory.awaited.rows(None)
    }
}

impl Lab {
    /// The VFs that are offered to VMMs.
    pub fn seats(&self) -> impl Iterator<Item = &Seat> {
        self.seats.values()
    }

    /// A VF that is offered to VMMs.
    #[must_use]
    pub fn seat(&self, vf: &NamedVf) -> Option<&Seat> {
        self.seats.get(&vf.host.vf(vf.vf))
    }

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
            guarded: memory.is_guarded,
            resets: self
                .world()
                .device(seat.at)
                .map_or(0, |device| device.resets()),
            commands: (commands.commands, commands.errors),
            rings: commands.rings,
            vmms: seat.vmms,
            refused: seat.refused,
            socket: seat
                .socket
                .as_ref()
                .map_or_else(String::new, |path| path.display().to_string()),
        }
    }

    /// Returns the facts of a VF that is offered to VMMs, for diagnoses.
    pub(in crate::serve) fn offer_of(&self, vf: HostFunction) -> Option<Offer> {
        let seat = self.seats.get(&vf)?;
        let memory = seat.memory.statistics();
        let device = self.world().device(seat.at);
        let function = device.map(|device| device.function());
        let socket = seat.offered().map(|offered| offered.socket);
        let lost = socket.filter(|socket| !socket.exists());
        Some(Offer {
            lost_socket: lost.map(|socket| socket.display().to_string()),
            vmms: seat.vmms,
            refused: seat.refused,
            vmm: seat.vmm.map(|vmm| vhca_diagnosis::Vmm {
                pid: vmm.pid.map(|pid| pid.as_raw_nonzero().get().unsigned_abs()),
                vectors: vmm.vectors,
                has_driver: function.is_some_and(|function| function.has_driver()),
                events_waiting_since: function.and_then(|function| function.events_waiting_since()),
            }),
            memory: Memory {
                shared: memory.shared,
                unshared: memory.remote,
                touched: memory.touched,
                most: memory.most,
                refused: memory.refused,
            },
        })
    }
}
