//! The lines of a script after the configuration: what happens, and when.

#[cfg(test)]
mod tests;

use std::net::Ipv6Addr;

use hca_api::GlobalRoute;
use ib_vtime::Instant;
use ib_wire::{Gid, GidIndex, Lid, PKey, QKey, Qpn, Sl, SubnetPrefix};
use pf_context::{AddVfError, PortEvent, Route, WireSource};
use serde::Deserialize;
use serde::de::IgnoredAny;
use thiserror::Error;
use vf_tunnel::{SpecialQp, ToPf, VfId};
use zerocopy::IntoBytes;

use super::text::{Hex, HexBytes, Object, flow_label, qpn, sl};

/// The last millisecond that an [`Instant`] can tell: 584 years after the start.
pub(super) const LAST_MILLI: u64 = u64::MAX / 1_000_000;

/// Why a line cannot be understood.
#[derive(Debug, Error)]
pub(super) enum LineError {
    /// Not JSON, or not the fields of its form.
    #[error("{}", describe(.0))]
    Form(#[from] serde_json::Error),
    #[error("the line is empty")]
    Empty,
    #[error("longer than 1 MiB")]
    TooLong,
    #[error("the configuration can only be the first line")]
    LateConfig,
    #[error("`from` is `{0}`; it can be `wire` or `vf:` and a number")]
    UnknownSource(String),
    #[error("there is no VF {vf}; {}", vfs_there_are(*.vfs))]
    UnknownVf { vf: u64, vfs: u16 },
    #[error("`{0}` is no subnet prefix; its lower 64 bits must be zero")]
    NoPrefix(Ipv6Addr),
    #[error("`at` is {0}; the last millisecond is {LAST_MILLI}")]
    BeyondTime(u64),
    #[error("`at` is {at}, but an earlier line was at {clock}: time never decreases")]
    Decreasing { at: u64, clock: u64 },
    #[error("{0} VFs are too many; there can be {max}", max = VfId::MAX)]
    TooManyVfs(u64),
    #[error("a port's GUID is not 0")]
    NoPortGuid,
    #[error(transparent)]
    NoVf(#[from] AddVfError),
}

/// What `serde_json` says, with the column only: its line is always the first.
fn describe(error: &serde_json::Error) -> String {
    let text = error.to_string();
    match text.rsplit_once(" at line ") {
        Some((reason, _)) => format!("{reason}, at column {}", error.column()),
        None => text,
    }
}

fn vfs_there_are(vfs: u16) -> String {
    match vfs {
        0 => "the script has none".to_owned(),
        1 => "the script has VF 1 only".to_owned(),
        _ => format!("the script has VFs 1 to {vfs}"),
    }
}

/// A line that is no configuration.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Step {
    /// When it happens.
    pub(super) at: Instant,
    /// What happens.
    pub(super) action: Action,
}

/// What happens.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Action {
    /// A VF sends.
    FromVf {
        vf: VfId,
        qp: SpecialQp,
        /// The tunnel frame: of its proper length if the MAD has its own.
        frame: Vec<u8>,
    },
    /// The wire delivers.
    FromWire {
        qp: SpecialQp,
        source: WireSource,
        mad: Vec<u8>,
    },
    /// A VF is reset.
    VfReset(VfId),
    /// Something happens to the port.
    Port(PortEvent),
    /// Nothing but time passes; the sizes of the live tables may be asked for.
    Barrier {
        /// Whether they are.
        stats: bool,
    },
}

/// Which form a line has. The second reading, of that form, refuses what does not belong to it.
#[derive(Deserialize)]
struct Shape {
    config: Option<IgnoredAny>,
    from: Option<String>,
    event: Option<IgnoredAny>,
}

/// Whether a line is a configuration, whatever is in it.
pub(super) fn is_config(line: &[u8]) -> Result<bool, LineError> {
    let Object(shape) = serde_json::from_slice::<Object<Shape>>(line)?;
    Ok(shape.config.is_some())
}

/// Reads a line that is no configuration, in a script with VFs 1 to `vfs`.
pub(super) fn parse(line: &[u8], vfs: u16) -> Result<Step, LineError> {
    let Object(shape) = serde_json::from_slice::<Object<Shape>>(line)?;
    let (at, action) = match shape {
        Shape {
            config: Some(_), ..
        } => return Err(LineError::LateConfig),
        Shape {
            from: Some(from), ..
        } => match source(&from, vfs)? {
            Source::Wire => wire_mad(serde_json::from_slice(line)?),
            Source::Vf(vf) => vf_mad(vf, serde_json::from_slice(line)?),
        },
        Shape { event: Some(_), .. } => event(serde_json::from_slice(line)?, vfs)?,
        Shape { .. } => {
            let BarrierLine { at, stats } = serde_json::from_slice(line)?;
            (at, Action::Barrier { stats })
        }
    };
    if at > LAST_MILLI {
        return Err(LineError::BeyondTime(at));
    }
    Ok(Step {
        at: Instant::from_millis(at),
        action,
    })
}

enum Source {
    Wire,
    Vf(VfId),
}

fn source(from: &str, vfs: u16) -> Result<Source, LineError> {
    if from == "wire" {
        return Ok(Source::Wire);
    }
    let unknown = || LineError::UnknownSource(from.to_owned());
    let digits = from.strip_prefix("vf:").ok_or_else(unknown)?;
    let leading_zero = digits.len() > 1 && digits.starts_with('0');
    if digits.is_empty() || leading_zero || !digits.bytes().all(|digit| digit.is_ascii_digit()) {
        return Err(unknown());
    }
    known_vf(digits.parse().map_err(|_| unknown())?, vfs).map(Source::Vf)
}

/// The VF of a number, if the script has it.
pub(super) fn known_vf(vf: u64, vfs: u16) -> Result<VfId, LineError> {
    u16::try_from(vf)
        .ok()
        .filter(|&vf| vf <= vfs)
        .and_then(VfId::new)
        .ok_or(LineError::UnknownVf { vf, vfs })
}

/// The subnet prefix of an address, if it is one.
pub(super) fn prefix(address: Ipv6Addr) -> Result<SubnetPrefix, LineError> {
    let gid = Gid::from(address);
    if gid.interface_id().is_none() {
        Ok(gid.prefix())
    } else {
        Err(LineError::NoPrefix(address))
    }
}

#[derive(Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
enum QpName {
    Smi,
    #[default]
    Gsi,
}

impl From<QpName> for SpecialQp {
    fn from(name: QpName) -> Self {
        match name {
            QpName::Smi => Self::Smi,
            QpName::Gsi => Self::Gsi,
        }
    }
}

/// The well-known Q_Key of a special QP.
const fn well_known_qkey(qp: SpecialQp) -> QKey {
    match qp {
        SpecialQp::Smi => QKey::SMI,
        SpecialQp::Gsi => QKey::GSI,
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct VfMadLine {
    at: u64,
    #[serde(rename = "from")]
    _from: IgnoredAny,
    #[serde(default)]
    qp: QpName,
    dlid: u16,
    #[serde(default, deserialize_with = "some_qpn")]
    dqpn: Option<Qpn>,
    qkey: Option<Hex<u32>>,
    #[serde(default, deserialize_with = "sl")]
    sl: Sl,
    #[serde(default)]
    pkey_index: u16,
    grh: Option<Object<RouteLine>>,
    mad: HexBytes,
}

/// Defines the object of a `grh`: how it names the source, and what it says in either direction.
macro_rules! grh_object {
    ($name:ident { $($source:tt)* }) => {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct $name {
            $($source)*
            dgid: Ipv6Addr,
            #[serde(default)]
            tclass: u8,
            #[serde(default, deserialize_with = "flow_label")]
            flow: u32,
            #[serde(default = "one_hop")]
            hop: u8,
        }
    };
}

grh_object! {
    RouteLine {
        #[serde(default)]
        sgid_index: u8,
    }
}

grh_object! {
    GrhLine {
        sgid: Ipv6Addr,
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WireMadLine {
    at: u64,
    #[serde(rename = "from")]
    _from: IgnoredAny,
    #[serde(default)]
    qp: QpName,
    slid: u16,
    #[serde(default, deserialize_with = "some_qpn")]
    sqpn: Option<Qpn>,
    #[serde(default, deserialize_with = "sl")]
    sl: Sl,
    pkey: Option<Hex<u16>>,
    grh: Option<Object<GrhLine>>,
    mad: HexBytes,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct BarrierLine {
    at: u64,
    #[serde(default)]
    stats: bool,
}

#[derive(Deserialize)]
#[serde(tag = "event", rename_all = "snake_case", deny_unknown_fields)]
enum EventLine {
    VfReset {
        at: u64,
        vf: u64,
    },
    ClientReregister {
        at: u64,
    },
    LidChange {
        at: u64,
        lid: u16,
    },
    SmChange {
        at: u64,
        sm_lid: u16,
        #[serde(default, deserialize_with = "sl")]
        sm_sl: Sl,
    },
    PortDown {
        at: u64,
    },
    PortUp {
        at: u64,
    },
    PkeyTable {
        at: u64,
        pkeys: Vec<Hex<u16>>,
    },
    GidPrefix {
        at: u64,
        subnet_prefix: Ipv6Addr,
    },
}

const fn one_hop() -> u8 {
    1
}

fn some_qpn<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<Qpn>, D::Error> {
    qpn(deserializer).map(Some)
}

fn vf_mad(vf: VfId, line: VfMadLine) -> (u64, Action) {
    let qp = SpecialQp::from(line.qp);
    let route = line.grh.map(|Object(route)| GlobalRoute {
        remote_gid: Gid::from(route.dgid),
        sgid_index: GidIndex(u16::from(route.sgid_index)),
        flow_label: route.flow,
        hop_limit: route.hop,
        traffic_class: route.tclass,
    });
    let mut header = ToPf::zeroed().header;
    header.av.flags_port = 1;
    header.av.dlid = Lid::new(line.dlid);
    header.set_route(line.sl, 0, route.as_ref());
    header.remote_qpn = line.dqpn.unwrap_or_else(|| qp.wire_qpn());
    header.remote_qkey = match line.qkey {
        Some(Hex(key)) => QKey::new(key),
        None => well_known_qkey(qp),
    };
    header.pkey_index.set(line.pkey_index);
    let mut frame = header.as_bytes().to_vec();
    frame.extend_from_slice(&line.mad.0);
    (line.at, Action::FromVf { vf, qp, frame })
}

fn wire_mad(line: WireMadLine) -> (u64, Action) {
    let qp = SpecialQp::from(line.qp);
    let source = WireSource {
        slid: Lid::new(line.slid),
        sqpn: line.sqpn.unwrap_or_else(|| qp.wire_qpn()),
        sl: line.sl,
        pkey: line
            .pkey
            .map_or(PKey::DEFAULT_FULL, |Hex(key)| PKey::new(key)),
        path_bits: 0,
        grh: line.grh.map(|Object(grh)| Route {
            sgid: Gid::from(grh.sgid),
            dgid: Gid::from(grh.dgid),
            traffic_class: grh.tclass,
            flow_label: grh.flow,
            hop_limit: grh.hop,
        }),
    };
    let HexBytes(mad) = line.mad;
    (line.at, Action::FromWire { qp, source, mad })
}

fn event(line: EventLine, vfs: u16) -> Result<(u64, Action), LineError> {
    let (at, event) = match line {
        EventLine::VfReset { at, vf } => return Ok((at, Action::VfReset(known_vf(vf, vfs)?))),
        EventLine::ClientReregister { at } => (at, PortEvent::ClientReregister),
        EventLine::LidChange { at, lid } => (at, PortEvent::LidChange(Lid::new(lid))),
        EventLine::SmChange { at, sm_lid, sm_sl } => {
            let lid = Lid::new(sm_lid);
            (at, PortEvent::SmChange { lid, sl: sm_sl })
        }
        EventLine::PortDown { at } => (at, PortEvent::PortDown),
        EventLine::PortUp { at } => (at, PortEvent::PortUp),
        EventLine::PkeyTable { at, pkeys } => (at, PortEvent::PKeyTable(pkey_table(&pkeys))),
        EventLine::GidPrefix { at, subnet_prefix } => {
            (at, PortEvent::GidPrefix(prefix(subnet_prefix)?))
        }
    };
    Ok((at, Action::Port(event)))
}

/// The keys of a P_Key table.
pub(super) fn pkey_table(keys: &[Hex<u16>]) -> Vec<PKey> {
    keys.iter().map(|&Hex(key)| PKey::new(key)).collect()
}
