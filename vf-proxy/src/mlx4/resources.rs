//! Numbers of objects that the driver asks for before it makes them, and gives back after
//! (`ALLOC_RES`, `FREE_RES`).

use hca_api::{Hca, SpecialQp};
use ib_vtime::SecretNumbers;
use ib_wire::{PortNum, Qpn};
use mlx4_defs::resource::{QpReservation, ResourceOp, ResourceParam, ResourceType};
use mlx4_defs::{CounterIndex, Cqn, MptIndex, MttIndex, Srqn, Status};

use super::capability::{COUNTER_NUMBERS, CQ_NUMBERS, MPT_NUMBERS, Quotas, SRQ_NUMBERS};
use super::mpt::Mpts;
use super::mtt::Mtts;
use super::ownership::{Number, Numbers, Ownership};
use super::pd::status_of;

/// Largest alignment of queue pair numbers that the driver can ask for.
const MAX_QPN_ALIGN: u32 = 1 << 12;
/// Numbers of the special queue pairs' stand-ins: proxies and tunnels of QP0 and QP1, each of two ports.
const SPECIAL_QPNS: u32 = 8;

/// What the driver wants numbers of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Allocation {
    /// Queue pair numbers in a row, the first a multiple of `align`.
    Qpns { count: u32, align: u32 },
    /// The context of a queue pair.
    Qp(Qpn),
    /// A completion queue.
    Cq,
    /// A shared receive queue.
    Srq,
    /// An index of a memory region.
    Mpt,
    /// The entry of a memory region.
    MptEntry(MptIndex),
    /// Entries of the translation table.
    Mtts { order: u8 },
    /// A counter.
    Counter,
}

impl Allocation {
    /// What a command asks for.
    ///
    /// # Errors
    /// [`Status::BAD_PARAM`] for kinds that the function does not have.
    pub(super) fn parse(kind: ResourceType, op: ResourceOp, param: u64) -> Result<Self, Status> {
        let ResourceParam { low, high } = param.into();
        match (kind, op) {
            (ResourceType::QP, ResourceOp::RESERVE) => Ok(Self::Qpns {
                count: QpReservation { word: low.into() }.count(),
                align: high.max(1),
            }),
            (ResourceType::QP, ResourceOp::MAP_ICM) => number(low).map(Self::Qp),
            (ResourceType::CQ, ResourceOp::RESERVE_AND_MAP) => Ok(Self::Cq),
            (ResourceType::SRQ, ResourceOp::RESERVE_AND_MAP) => Ok(Self::Srq),
            (ResourceType::MPT, ResourceOp::RESERVE) => Ok(Self::Mpt),
            (ResourceType::MPT, ResourceOp::MAP_ICM) => number(low).map(Self::MptEntry),
            (ResourceType::MTT, ResourceOp::RESERVE_AND_MAP) => {
                Ok(Self::Mtts { order: order(low)? })
            }
            (ResourceType::COUNTER, ResourceOp::RESERVE) => Ok(Self::Counter),
            _ => Err(Status::BAD_PARAM),
        }
    }
}

/// What the driver gives back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Release {
    /// Queue pair numbers in a row.
    Qpns { first: Qpn, count: u32 },
    /// The context of a queue pair.
    Qp(Qpn),
    /// A completion queue.
    Cq(Cqn),
    /// A shared receive queue.
    Srq(Srqn),
    /// An index of a memory region.
    Mpt(MptIndex),
    /// The entry of a memory region.
    MptEntry(MptIndex),
    /// Entries of the translation table.
    Mtts { first: MttIndex, order: u8 },
    /// A counter.
    Counter(CounterIndex),
}

impl Release {
    /// What a command gives back.
    ///
    /// # Errors
    /// [`Status::BAD_PARAM`] for kinds that the function does not have.
    pub(super) fn parse(kind: ResourceType, op: ResourceOp, param: u64) -> Result<Self, Status> {
        let ResourceParam { low, high } = param.into();
        match (kind, op) {
            (ResourceType::QP, ResourceOp::RESERVE) => Ok(Self::Qpns {
                first: number(low)?,
                count: high,
            }),
            (ResourceType::QP, ResourceOp::MAP_ICM) => number(low).map(Self::Qp),
            (ResourceType::CQ, ResourceOp::RESERVE_AND_MAP) => number(low).map(Self::Cq),
            (ResourceType::SRQ, ResourceOp::RESERVE_AND_MAP) => number(low).map(Self::Srq),
            (ResourceType::MPT, ResourceOp::RESERVE) => number(low).map(Self::Mpt),
            (ResourceType::MPT, ResourceOp::MAP_ICM) => number(low).map(Self::MptEntry),
            (ResourceType::MTT, ResourceOp::RESERVE_AND_MAP) => Ok(Self::Mtts {
                first: MttIndex(low.into()),
                order: order(high)?,
            }),
            (ResourceType::COUNTER, ResourceOp::RESERVE) => number(low).map(Self::Counter),
            _ => Err(Status::BAD_PARAM),
        }
    }
}

fn number<N: Number>(value: u32) -> Result<N, Status> {
    N::new(value).ok_or(Status::BAD_PARAM)
}

fn order(log2: u32) -> Result<u8, Status> {
    u8::try_from(log2).map_err(|_| Status::BAD_PARAM)
}

/// A number as the result of a command.
fn result(number: impl Number) -> u64 {
    number.get().into()
}

/// The numbers by which a driver knows the stand-ins of the special queue pairs, as the PF lays them out
/// (`mlx4_init_qp_table`): proxies of QP0 by port, of QP1 by port, then the tunnels in the same way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SpecialQpns {
    first: Qpn,
}

impl SpecialQpns {
    const fn slot(special: SpecialQp, port: PortNum) -> u32 {
        let of_port = (port.0 as u32).saturating_sub(1) & 1;
        match special {
            SpecialQp::Smi => of_port,
            SpecialQp::Gsi => 2 + of_port,
        }
    }

    /// The driver's proxy.
    pub(super) const fn proxy(self, special: SpecialQp, port: PortNum) -> Qpn {
        Qpn::from_low_bits(self.first.get() + Self::slot(special, port))
    }

    /// Where the proxy sends.
    pub(super) const fn tunnel(self, special: SpecialQp, port: PortNum) -> Qpn {
        Qpn::from_low_bits(self.first.get() + 4 + Self::slot(special, port))
    }

    /// Which proxy has a number.
    pub(super) fn proxy_of(self, qpn: Qpn) -> Option<(SpecialQp, PortNum)> {
        match qpn.get().checked_sub(self.first.get())? {
            0 => Some((SpecialQp::Smi, PortNum(1))),
            1 => Some((SpecialQp::Smi, PortNum(2))),
            2 => Some((SpecialQp::Gsi, PortNum(1))),
            3 => Some((SpecialQp::Gsi, PortNum(2))),
            _ => None,
        }
    }

    const fn contains(self, qpn: Qpn) -> bool {
        qpn.get().wrapping_sub(self.first.get()) < SPECIAL_QPNS
    }
}

/// The numbers that the driver has.
#[derive(Debug)]
pub(super) struct Resources {
    pub(super) qps: Ownership<Qpn>,
    pub(super) cqs: Numbers<Cqn>,
    pub(super) srqs: Numbers<Srqn>,
    pub(super) mpts: Numbers<MptIndex>,
    pub(super) counters: Numbers<CounterIndex>,
    special: Option<SpecialQpns>,
    /// Draws indices of regions, from the first on.
    random: Option<SecretNumbers>,
}

impl Default for Resources {
    fn default() -> Self {
        Self {
            qps: Ownership::default(),
            cqs: Numbers::new(CQ_NUMBERS),
            srqs: Numbers::new(SRQ_NUMBERS),
            mpts: Numbers::new(MPT_NUMBERS),
            counters: Numbers::new(COUNTER_NUMBERS),
            special: None,
            random: None,
        }
    }
}

impl Resources {
    /// The special queue pairs' numbers, which are set aside when somebody first asks.
    ///
    /// # Errors
    /// [`Status::EXCEED_LIM`].
    pub(super) fn special_qpns(&mut self, hca: &mut dyn Hca) -> Result<SpecialQpns, Status> {
        if let Some(special) = self.special {
            return Ok(special);
        }
        let first = hca.reserve_qpns(SPECIAL_QPNS, SPECIAL_QPNS);
        let first = first.map_err(|_| Status::EXCEED_LIM)?;
        self.qps.reserve(first, SPECIAL_QPNS / 2);
        let special = SpecialQpns { first };
        self.special = Some(special);
        Ok(special)
    }

    /// The special queue pairs' numbers, if somebody asked for them.
    pub(super) const fn known_special_qpns(&self) -> Option<SpecialQpns> {
        self.special
    }

    /// Gives numbers; the result is the first of them.
    ///
    /// # Errors
    /// [`Status::EXCEED_LIM`], [`Status::BAD_PARAM`].
    pub(super) fn allocate(
        &mut self,
        hca: &mut dyn Hca,
        mtts: &mut Mtts,
        wanted: Allocation,
    ) -> Result<u64, Status> {
        let quotas = Quotas::of(&hca.attributes().limits);
        match wanted {
            Allocation::Qpns { count, align } => {
                self.reserve_qpns(hca, &quotas, count, align).map(result)
            }
            Allocation::Qp(qpn) => self.qps.map(qpn).map(|()| result(qpn)),
            Allocation::Cq => self.cqs.reserve_and_map(quotas.cqs).map(result),
            Allocation::Srq => self.srqs.reserve_and_map(quotas.srqs).map(result),
            Allocation::Mpt => self.reserve_mpt(hca, &quotas).map(result),
            Allocation::MptEntry(index) => self.mpts.owned.map(index).map(|()| result(index)),
            Allocation::Mtts { order } => mtts.alloc(order).map(|MttIndex(first)| first),
            Allocation::Counter => {
                let index = self.counters.reserve_and_map(quotas.counters);
                index.map(result)
            }
        }
    }

    fn reserve_mpt(&mut self, hca: &mut dyn Hca, quotas: &Quotas) -> Result<MptIndex, Status> {
        let random = match &mut self.random {
            Some(random) => random,
            none => none.insert(hca.draw_secret().map_err(status_of)?.numbers()),
        };
        self.mpts.reserve_secretly(quotas.mpts, random)
    }

    fn reserve_qpns(
        &mut self,
        hca: &mut dyn Hca,
        quotas: &Quotas,
        count: u32,
        align: u32,
    ) -> Result<Qpn, Status> {
        if count == 0 || !align.is_power_of_two() || align > MAX_QPN_ALIGN {
            return Err(Status::BAD_PARAM);
        }
        // Proxies are not the driver's.
        let proxies = self.special.map_or(0, |_| SPECIAL_QPNS / 2);
        if count > (quotas.qps + proxies).saturating_sub(self.qps.len()) {
            return Err(Status::EXCEED_LIM);
        }
        let first = hca.reserve_qpns(count, align).map_err(status_of)?;
        self.qps.reserve(first, count);
        Ok(first)
    }

    /// Takes numbers back.
    ///
    /// # Errors
    /// [`Status::BAD_PARAM`] for what the driver does not have, [`Status::RESOURCE_BUSY`] for what is
    /// in use.
    pub(super) fn release(
        &mut self,
        hca: &mut dyn Hca,
        mtts: &mut Mtts,
        mpts: &mut Mpts,
        given: Release,
    ) -> Result<(), Status> {
        match given {
            Release::Qpns { first, count } => self.release_qpns(hca, first, count),
            Release::Qp(qpn) => self.qps.unmap(qpn),
            Release::Cq(cqn) => self.cqs.unmap_and_release(cqn),
            Release::Srq(srqn) => self.srqs.unmap_and_release(srqn),
            Release::Mpt(index) => {
                self.mpts.owned.release(index, 1)?;
                mpts.forget(index);
                Ok(())
            }
            Release::MptEntry(index) => self.mpts.owned.unmap(index),
            Release::Mtts { first, order } => mtts.free(first, order),
            Release::Counter(index) => self.counters.unmap_and_release(index),
        }
    }

    fn release_qpns(&mut self, hca: &mut dyn Hca, first: Qpn, count: u32) -> Result<(), Status> {
        let special = self.special.is_some_and(|special| {
            special.contains(first) || special.first.get().wrapping_sub(first.get()) < count
        });
        if count == 0 || special {
            return Err(Status::BAD_PARAM);
        }
        self.qps.check_reserved(first, count)?;
        hca.release_qpns(first, count).map_err(status_of)?;
        self.qps.release(first, count)
    }
}
