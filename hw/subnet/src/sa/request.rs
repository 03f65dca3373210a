//! What a handler sees of a request, and what it makes of it.

use ib_endpoint::{MadAddress, Message};
use ib_vtime::Instant;
use ib_wire::mad::{AttributeId, Mad, MadStatus, Method};
use ib_wire::notice::InformInfo;
use ib_wire::sa::{ComponentMask, SaMad, SaRecord};
use ib_wire::smp::SmInfo;
use ib_wire::{Guid, SmKey};
use zerocopy::network_endian::U16;

use crate::topology::{Port, PortId, Topology};

/// Most bytes of records in an answer: what the MAD agents of clients take by default. A request
/// that matches more is refused for lack of resources.
pub const MAX_ANSWER: usize = 4 << 20;

/// The subnet that the SA answers about.
#[derive(Clone, Copy, Debug)]
pub struct SubnetView<'a> {
    /// Nodes, ports, tables.
    pub topology: &'a Topology,
    /// What the manager says of itself.
    pub manager: SmInfo,
    /// What other managers say of themselves, with the GUIDs of their ports.
    pub other_managers: &'a [(Guid, SmInfo)],
}

/// Why a request gets no records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// An answer with this status and the request's own bytes.
    Status(MadStatus),
    /// No answer.
    Silent,
}

impl From<MadStatus> for Refusal {
    fn from(status: MadStatus) -> Self {
        Self::Status(status)
    }
}

/// The records that answer a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Records {
    bytes: Vec<u8>,
    offset: u16,
    count: usize,
}

impl Records {
    /// One record.
    pub(super) fn one<R: SaRecord>(record: &R) -> Result<Self, Refusal> {
        let mut records = Self::default();
        records.push(record)?;
        Ok(records)
    }

    /// Adds a record of the same type.
    pub(super) fn push<R: SaRecord>(&mut self, record: &R) -> Result<(), Refusal> {
        let stride = usize::from(R::ATTRIBUTE_OFFSET) * 8;
        if self.bytes.len() + stride.max(size_of::<R>()) > MAX_ANSWER {
            return Err(MadStatus::SA_NO_RESOURCES.into());
        }
        self.offset = R::ATTRIBUTE_OFFSET;
        self.bytes.extend_from_slice(record.as_bytes());
        self.count += 1;
        Ok(())
    }

    /// How many records there are.
    pub(super) fn len(&self) -> usize {
        self.count
    }

    /// Returns the number of bytes of all records.
    pub(super) fn bytes(&self) -> usize {
        self.bytes.len()
    }
}

/// What a handler makes of a request.
pub(super) type Outcome = Result<Records, Refusal>;

/// How far a piece of a query came: its search says so, unless the query is refused.
pub(super) type Found = Result<(), Refusal>;

/// A request with what is known of its sender.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request<'a> {
    /// When it came.
    pub(super) now: Instant,
    /// The request.
    pub(super) mad: &'a SaMad,
    /// The data of a request that came by RMPP, or of `mad`.
    pub(super) data: &'a [u8],
    /// Its sender.
    pub(super) from: &'a MadAddress,
    /// The subnet.
    pub(super) view: SubnetView<'a>,
}

impl<'a> Request<'a> {
    /// The subnet's topology.
    pub(super) fn topology(&self) -> &'a Topology {
        self.view.topology
    }

    /// The method.
    pub(super) fn method(&self) -> Method {
        self.mad.header.method
    }

    /// Whether only one record is asked for.
    pub(super) fn is_get(&self) -> bool {
        self.method() == Method::GET
    }

    /// Whether all components of `mask` are meant.
    pub(super) fn has(&self, mask: ComponentMask) -> bool {
        self.mad.component_mask.contains(mask)
    }

    /// Whether a component of the request, if it is meant, has the value.
    pub(super) fn matches<T: PartialEq>(&self, mask: ComponentMask, wanted: T, held: T) -> bool {
        !self.has(mask) || wanted == held
    }

    /// The record of the request.
    pub(super) fn record<R: SaRecord>(&self) -> R {
        self.mad.record()
    }

    /// Whether the sender showed the SA's key. A wrong one never gets here.
    pub(super) fn is_trusted(&self) -> bool {
        self.mad.sm_key != SmKey::default()
    }

    /// The sender's port.
    pub(super) fn requester(&self) -> Result<(PortId, &'a Port), Refusal> {
        let id = self
            .topology()
            .port_by_lid(self.from.lid)
            .ok_or(Refusal::Silent)?;
        Ok((id, self.topology().port(id).ok_or(Refusal::Silent)?))
    }
}

/// Puts an outcome into an answer, as OpenSM does: records behind the request's header, or for an
/// error the whole request with a status. The SM_Key is never shown.
pub(super) fn answer(request: &SaMad, outcome: Outcome) -> Option<Message> {
    let mut head = *request;
    head.header.method = request.header.method.response();
    head.sm_key = SmKey::default();
    if request.header.attribute_id == AttributeId::MULTI_PATH_RECORD {
        head.header.attribute_id = AttributeId::PATH_RECORD;
    }
    let single = !matches!(request.header.method, Method::GET_TABLE | Method::GET_MULTI);
    let outcome = outcome.and_then(|records| match records.len() {
        0 if single => Err(MadStatus::SA_NO_RECORDS.into()),
        2.. if request.header.method == Method::GET => Err(MadStatus::SA_TOO_MANY_RECORDS.into()),
        _ => Ok(records),
    });
    match outcome {
        Err(Refusal::Silent) => None,
        Err(Refusal::Status(status)) => {
            head.header.status = status;
            if head.header.attribute_id == AttributeId::INFORM_INFO {
                // Who is refused is not subscribed (IBA o13-13.1.1).
                head.record_mut::<InformInfo>().subscribe = 0;
            }
            if request.header.method == Method::GET_TABLE {
                head.attribute_offset = U16::new(0);
            }
            Some(Message::single(Mad::from_layout(&head)))
        }
        Ok(records) => {
            let offset = if records.len() == 0 {
                0
            } else {
                records.offset
            };
            head.attribute_offset = U16::new(offset);
            if single {
                head.data.fill(0);
                for (to, from) in head.data.iter_mut().zip(&records.bytes) {
                    *to = *from;
                }
                return Some(Message::single(Mad::from_layout(&head)));
            }
            Message::rmpp(Mad::from_layout(&head), records.bytes)
        }
    }
}
