//! Which layouts a MAD has, by its class and attribute, and encoding it again through them.

use ib_wire::cm;
use ib_wire::devmgt::{DevMgtMad, IoControllerProfile, IoUnitInfo, ServiceEntries};
use ib_wire::mad::{AttributeId, Mad, MadHeader, MgmtClass};
use ib_wire::notice::{ClassPortInfo, InformInfo, Notice, NoticeReport};
use ib_wire::perf::{
    PerfAttribute, PerfMad, PortCounters, PortCountersExtended, PortSamplesControl,
    PortSamplesResult,
};
use ib_wire::rmpp::{RmppMad, VendorOuiMad};
use ib_wire::sa::{self, SaMad, SaRecord};
use ib_wire::smp::{self, DirectedRouteSmp, LidRoutedSmp, SmpAttribute};

use crate::fields::{Fields, Layout};

/// An attribute of a class: its id, its name in the traces, its layout.
#[derive(Clone, Copy, Debug)]
pub struct Attribute {
    /// The attribute id.
    pub id: AttributeId,
    /// The name that the traces use.
    pub name: &'static str,
    /// The layout of its data.
    pub layout: Layout,
}

const fn smp<T: SmpAttribute + Fields>(name: &'static str) -> Attribute {
    attribute::<T>(T::ID, name)
}

const fn perf<T: PerfAttribute + Fields>(name: &'static str) -> Attribute {
    attribute::<T>(T::ID, name)
}

const fn record<T: SaRecord + Fields>(name: &'static str) -> Attribute {
    attribute::<T>(T::ATTRIBUTE_ID, name)
}

const fn attribute<T: Fields>(id: AttributeId, name: &'static str) -> Attribute {
    Attribute {
        id,
        name,
        layout: Layout::of::<T>(),
    }
}

const SMP_ATTRIBUTES: &[Attribute] = &[
    smp::<Notice>("Notice"),
    smp::<smp::NodeDescription>("NodeDesc"),
    smp::<smp::NodeInfo>("NodeInfo"),
    smp::<smp::SwitchInfo>("SwitchInfo"),
    smp::<smp::GuidInfo>("GUIDInfo"),
    smp::<smp::PortInfo>("PortInfo"),
    smp::<smp::PKeyTable>("PKeyTable"),
    smp::<smp::SlToVlMappingTable>("SLtoVL"),
    smp::<smp::VlArbitrationTable>("VLArb"),
    smp::<smp::LinearForwardingTable>("LFT"),
    smp::<smp::MulticastForwardingTable>("MFT"),
    smp::<smp::SmInfo>("SMInfo"),
    smp::<smp::LedInfo>("LedInfo"),
    smp::<smp::MlnxExtPortInfo>("MlnxExtPortInfo"),
];

const PERF_ATTRIBUTES: &[Attribute] = &[
    perf::<ClassPortInfo>("ClassPortInfo"),
    perf::<PortSamplesControl>("PortSamplesControl"),
    perf::<PortSamplesResult>("PortSamplesResult"),
    perf::<PortCounters>("PortCounters"),
    perf::<PortCountersExtended>("PortCountersExtended"),
];

const SA_ATTRIBUTES: &[Attribute] = &[
    attribute::<ClassPortInfo>(AttributeId::CLASS_PORT_INFO, "ClassPortInfo"),
    attribute::<NoticeReport>(AttributeId::NOTICE, "Notice"),
    attribute::<InformInfo>(AttributeId::INFORM_INFO, "InformInfo"),
    record::<sa::NodeRecord>("NodeRecord"),
    record::<sa::PortInfoRecord>("PortInfoRecord"),
    record::<sa::SlToVlRecord>("SLtoVLRecord"),
    record::<sa::SwitchInfoRecord>("SwitchInfoRecord"),
    record::<sa::LftRecord>("LFTRecord"),
    record::<sa::MftRecord>("MFTRecord"),
    record::<sa::SmInfoRecord>("SMInfoRecord"),
    record::<sa::LinkRecord>("LinkRecord"),
    record::<sa::GuidInfoRecord>("GUIDInfoRecord"),
    record::<sa::ServiceRecord>("ServiceRecord"),
    record::<sa::PKeyTableRecord>("PKeyTableRecord"),
    record::<sa::PathRecord>("PathRecord"),
    record::<sa::VlArbRecord>("VLArbRecord"),
    record::<sa::McMemberRecord>("MCMemberRecord"),
    record::<sa::MultiPathRecord>("MultiPathRecord"),
    record::<sa::InformInfoRecord>("InformInfoRecord"),
];

const DEV_MGT_ATTRIBUTES: &[Attribute] = &[
    attribute::<ClassPortInfo>(AttributeId::CLASS_PORT_INFO, "ClassPortInfo"),
    attribute::<IoUnitInfo>(AttributeId::IO_UNIT_INFO, "IOUnitInfo"),
    attribute::<IoControllerProfile>(AttributeId::IO_CONTROLLER_PROFILE, "IOControllerProfile"),
    attribute::<ServiceEntries>(AttributeId::SERVICE_ENTRIES, "ServiceEntries"),
];

/// The CM's messages: the attribute is the whole MAD.
const CM_MESSAGES: &[Attribute] = &[
    attribute::<cm::CmReq>(AttributeId::CM_REQ, "REQ"),
    attribute::<cm::CmMra>(AttributeId::CM_MRA, "MRA"),
    attribute::<cm::CmRej>(AttributeId::CM_REJ, "REJ"),
    attribute::<cm::CmRep>(AttributeId::CM_REP, "REP"),
    attribute::<cm::CmRtu>(AttributeId::CM_RTU, "RTU"),
    attribute::<cm::CmDreq>(AttributeId::CM_DREQ, "DREQ"),
    attribute::<cm::CmDrep>(AttributeId::CM_DREP, "DREP"),
    attribute::<cm::CmSidrReq>(AttributeId::CM_SIDR_REQ, "SIDR_REQ"),
    attribute::<cm::CmSidrRep>(AttributeId::CM_SIDR_REP, "SIDR_REP"),
    attribute::<cm::CmLap>(AttributeId::CM_LAP, "LAP"),
    attribute::<cm::CmApr>(AttributeId::CM_APR, "APR"),
];

/// The layout of a class's whole MAD, where its attribute data starts, and its attributes.
#[derive(Clone, Copy, Debug)]
pub struct Class {
    /// The name that the traces use.
    pub name: &'static str,
    /// The whole MAD.
    pub layout: Layout,
    /// The first byte of the attribute data.
    pub data: usize,
    /// What may stand there.
    pub attributes: &'static [Attribute],
}

/// The layouts of a class; `None` for classes that carry nothing this workspace reads.
#[must_use]
pub fn class(mgmt_class: MgmtClass) -> Option<Class> {
    let class = |name, layout, data, attributes| Class {
        name,
        layout,
        data,
        attributes,
    };
    Some(match mgmt_class {
        MgmtClass::SUBN_LID_ROUTED => {
            class("SMP-LR", Layout::of::<LidRoutedSmp>(), 64, SMP_ATTRIBUTES)
        }
        MgmtClass::SUBN_DIRECTED_ROUTE => class(
            "SMP-DR",
            Layout::of::<DirectedRouteSmp>(),
            64,
            SMP_ATTRIBUTES,
        ),
        MgmtClass::SUBN_ADM => class("SA", Layout::of::<SaMad>(), 56, SA_ATTRIBUTES),
        MgmtClass::PERF => class("PERF", Layout::of::<PerfMad>(), 64, PERF_ATTRIBUTES),
        MgmtClass::DEV_MGT => class("DM", Layout::of::<DevMgtMad>(), 64, DEV_MGT_ATTRIBUTES),
        MgmtClass::COM_MGT => class("CM", Layout::of::<RmppMad>(), 0, CM_MESSAGES),
        vendor if vendor.is_vendor_oui() => class("VENDOR", Layout::of::<VendorOuiMad>(), 40, &[]),
        _ => return None,
    })
}

impl Class {
    /// The attribute of an id.
    #[must_use]
    pub fn attribute(&self, id: AttributeId) -> Option<&'static Attribute> {
        self.attributes.iter().find(|attribute| attribute.id == id)
    }
}

/// A MAD that was encoded again from its fields.
#[derive(Clone, Debug)]
pub struct Reencoded {
    /// The class that the MAD has, if there are layouts of it.
    pub class: Option<Class>,
    /// The attribute that the MAD has, if there is a layout of it.
    pub attribute: Option<&'static Attribute>,
    /// The new bytes.
    pub bytes: Vec<u8>,
}

/// Decodes a MAD, or a table that is longer than one, and encodes it again field by field into a
/// buffer that was filled with 0xA5. Fails for fewer than 256 bytes.
///
/// # Errors
/// Says how many bytes there are.
pub fn reencode(bytes: &[u8]) -> Result<Reencoded, String> {
    let mad = bytes
        .first_chunk::<256>()
        .and_then(|mad| Mad::from_bytes(mad))
        .ok_or_else(|| format!("a MAD of {} bytes", bytes.len()))?;
    let mut out = vec![0xa5; bytes.len()];
    let class = class(mad.header.mgmt_class);
    let attribute = class.and_then(|class| class.attribute(mad.header.attribute_id));
    match class {
        Some(class) => class.layout.reencode(&bytes[..256], &mut out[..256]),
        None => out.copy_from_slice(bytes),
    }
    Layout::of::<MadHeader>().reencode(&bytes[..24], &mut out[..24]);
    if let (Some(class), Some(attribute)) = (class, attribute) {
        let data = &bytes[class.data..];
        let out = &mut out[class.data..];
        out.fill(0xa5);
        let stride = if mad.header.mgmt_class == MgmtClass::SUBN_ADM {
            usize::from(mad.view::<SaMad>().attribute_offset.get()) * 8
        } else {
            0
        };
        reencode_records(&attribute.layout, stride, data, out);
    }
    Ok(Reencoded {
        class,
        attribute,
        bytes: out,
    })
}

/// Encodes the records at a stride; without one, or with one that is too small, a single record.
/// What stands between records and behind the last whole one belongs to no layout and is copied.
fn reencode_records(layout: &Layout, stride: usize, data: &[u8], out: &mut [u8]) {
    let stride = if stride < layout.size {
        data.len()
    } else {
        stride
    };
    for (data, out) in data.chunks(stride).zip(out.chunks_mut(stride)) {
        let record = layout.size.min(data.len());
        if record == layout.size {
            layout.reencode(&data[..record], &mut out[..record]);
        } else {
            out[..record].copy_from_slice(&data[..record]);
        }
        out[record..].copy_from_slice(&data[record..]);
    }
}
