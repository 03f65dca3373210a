//! What an open umad file may do now. The library in the program and the server both keep these
//! rules: the one to give an error number at once, the other because it trusts nobody.

use ib_endpoint::segment_layout;
use ib_wire::mad::{MAD_SIZE, Mad, MadHeader, MgmtClass};
use ib_wire::rmpp::{RMPP_VERSION, RmppHeader};
use linux_abi::Errno;
use zerocopy::FromBytes;

use crate::abi::{
    HEADER_SIZE, MAX_AGENTS, OLD_HEADER_SIZE, RegisterRequest, RegisterRequest2, UmadHeader,
};
use crate::protocol::MAX_MESSAGE;

/// Bytes of a MAD up to the end of the RMPP header (`IB_MGMT_RMPP_HDR`): what a write has at least.
const RMPP_HEADER_END: usize = 36;

/// Classes below this can be registered for, and the directed-route one (`MAX_MGMT_CLASS`).
const CLASS_LIMIT: u8 = 0x50;

/// Class versions below this can be registered for (`MAX_MGMT_VERSION`).
const VERSION_LIMIT: u8 = 0x83;

/// Bytes of the common header of a MAD.
pub const MAD_HEADER_SIZE: usize = size_of::<MadHeader>();

/// A request that waits for its answer: which a second one must not be like (`is_duplicate` of the kernel's `user_mad.c`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestKey {
    agent: u32,
    class: MgmtClass,
    /// Its lower half: the upper one is the agent's.
    tid: u32,
}

impl RequestKey {
    /// Returns the key of a message with a header of so many bytes, or `None` if it is no request, or cut short.
    #[must_use]
    pub fn of_request(message: &[u8], header_size: usize) -> Option<Self> {
        Self::of(message, header_size, |header| !header.method.is_answer())
    }

    /// Returns the key of the request that a message which was read ends: its answer, or itself if there was none.
    #[must_use]
    pub fn ended_by(message: &[u8], header_size: usize) -> Option<Self> {
        Self::of(message, header_size, |_| true)
    }

    fn of(
        message: &[u8],
        header_size: usize,
        is_wanted: impl FnOnce(&MadHeader) -> bool,
    ) -> Option<Self> {
        let agent = UmadHeader::read(message, header_size)?.id.get();
        let (header, _) = MadHeader::read_from_prefix(message.get(header_size..)?).ok()?;
        is_wanted(&header).then(|| Self::new(agent, &header))
    }

    /// Returns the key of a request of an agent.
    #[must_use]
    pub const fn new(agent: u32, header: &MadHeader) -> Self {
        let [.., a, b, c, d] = header.tid.get().to_be_bytes();
        Self {
            agent,
            class: header.mgmt_class,
            tid: u32::from_be_bytes([a, b, c, d]),
        }
    }
}

/// What matters of an agent for what is written to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AgentRules {
    /// Whether it is on QP0.
    pub on_qp0: bool,
    /// Whether RMPP is done for it.
    pub has_rmpp: bool,
    /// `true` if it named a version of RMPP, even if it does the rest itself: it can send no class without RMPP.
    pub names_rmpp: bool,
}

/// The rules of an open file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FileRules {
    has_pkey_index: bool,
    is_used: bool,
    agents: [Option<AgentRules>; MAX_AGENTS],
}

/// What a write is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteShape {
    /// What stands before the MAD.
    pub header: UmadHeader,
    /// Whether RMPP carries the message.
    pub is_rmpp: bool,
    /// Where the data behind the class header starts in the MAD.
    pub data_offset: usize,
}

impl FileRules {
    /// Bytes before each MAD.
    #[must_use]
    pub const fn header_size(&self) -> usize {
        if self.has_pkey_index {
            HEADER_SIZE
        } else {
            OLD_HEADER_SIZE
        }
    }

    /// An agent.
    #[must_use]
    pub fn agent(&self, id: u32) -> Option<AgentRules> {
        self.agents.get(usize::try_from(id).ok()?).copied()?
    }

    /// Gives the headers a P_Key index.
    ///
    /// # Errors
    /// [`Errno::EINVAL`] once an agent was registered.
    pub const fn enable_pkey(&mut self) -> Result<(), Errno> {
        if self.is_used {
            return Err(Errno::EINVAL);
        }
        self.has_pkey_index = true;
        Ok(())
    }

    /// Whether an agent may be registered, and which number and rules it will have.
    ///
    /// # Errors
    /// [`Errno::EINVAL`] for what the kernel refuses, [`Errno::ENOMEM`] without a free number.
    pub fn check_registration(
        &self,
        request: &RegisterRequest2,
    ) -> Result<(u32, AgentRules), Errno> {
        let agent = agent_rules(request)?;
        let free = self.agents.iter().position(Option::is_none);
        let id = free.and_then(|id| u32::try_from(id).ok());
        let id = id.ok_or(Errno::ENOMEM)?;
        check_class(request, agent.on_qp0)?;
        Ok((id, agent))
    }

    /// Takes note of a registered agent. The second form of the request brings P_Key indices with
    /// it if it is the first one.
    pub fn registered(&mut self, id: u32, rules: AgentRules, second_form: bool) {
        if !self.is_used {
            self.is_used = true;
            self.has_pkey_index |= second_form;
        }
        if let Some(slot) = usize::try_from(id)
            .ok()
            .and_then(|id| self.agents.get_mut(id))
        {
            *slot = Some(rules);
        }
    }

    /// Takes note of a registration whose argument came back from the server, in either form.
    ///
    /// # Errors
    /// [`Errno::EPROTO`] if it cannot have been granted.
    pub fn note_registration(&mut self, argument: &[u8]) -> Result<(), Errno> {
        let (request, second_form) = match RegisterRequest2::read_from_bytes(argument) {
            Ok(request) => (request, true),
            Err(_) => {
                let old = RegisterRequest::read_from_bytes(argument);
                (old.map_err(|_| Errno::EPROTO)?.into(), false)
            }
        };
        let agent = agent_rules(&request).map_err(|_| Errno::EPROTO)?;
        self.registered(request.id.get(), agent, second_form);
        Ok(())
    }

    /// Takes an agent away.
    ///
    /// # Errors
    /// [`Errno::EINVAL`] if there is none.
    pub fn unregister(&mut self, id: u32) -> Result<(), Errno> {
        let slot = usize::try_from(id)
            .ok()
            .and_then(|id| self.agents.get_mut(id));
        slot.and_then(Option::take).map(|_| ()).ok_or(Errno::EINVAL)
    }

    /// Whether a message may be written: `len` bytes that start with `head`, which is all of them or
    /// [`HEADER_SIZE`] and a MAD at least.
    ///
    /// # Errors
    /// [`Errno::EINVAL`], also for a number that no agent can have; [`Errno::EIO`] for an agent that is not there
    /// (`ib_umad_write`); [`Errno::EMSGSIZE`] for a message longer than [`MAX_MESSAGE`].
    pub fn check_write(&self, head: &[u8], len: usize) -> Result<WriteShape, Errno> {
        let header_size = self.header_size();
        if len < header_size + RMPP_HEADER_END {
            return Err(Errno::EINVAL);
        }
        let header = UmadHeader::read(head, header_size).ok_or(Errno::EINVAL)?;
        let agent = match usize::try_from(header.id.get()) {
            Ok(id) if id < MAX_AGENTS => self.agents[id].ok_or(Errno::EIO)?,
            _ => return Err(Errno::EINVAL),
        };
        let mad = head.get(header_size..).ok_or(Errno::EINVAL)?;
        let (mad_header, rest) = MadHeader::read_from_prefix(mad).map_err(|_| Errno::EINVAL)?;
        let (rmpp, _) = RmppHeader::read_from_prefix(rest).map_err(|_| Errno::EINVAL)?;
        let class = mad_header.mgmt_class;
        // An SMP by an agent on QP1 leaves by QP1, as from the kernel; no peer takes it there.
        let is_misplaced = agent.on_qp0 && !class.is_smp();
        if is_misplaced || agent.names_rmpp && !carries_rmpp(class) {
            return Err(Errno::EINVAL);
        }
        let length = len - header_size;
        let data_offset = data_offset(class);
        if length < data_offset {
            return Err(Errno::EINVAL);
        }
        let is_rmpp = agent.has_rmpp && carries_rmpp(class) && rmpp.is_active();
        if !is_rmpp {
            let fits = length <= MAD_SIZE;
            let shape = WriteShape {
                header,
                is_rmpp,
                data_offset,
            };
            return fits.then_some(shape).ok_or(Errno::EINVAL);
        }
        let can_be_sent = segment_layout(class).is_some()
            && (mad_header.method.is_answer() || header.timeout_ms.get() != 0);
        if !can_be_sent {
            return Err(Errno::EINVAL);
        }
        if length > MAX_MESSAGE {
            return Err(Errno::EMSGSIZE);
        }
        Ok(WriteShape {
            header,
            is_rmpp,
            data_offset,
        })
    }
}

/// What an agent that is asked for would be.
const fn agent_rules(request: &RegisterRequest2) -> Result<AgentRules, Errno> {
    let on_qp0 = match request.qpn.get() {
        0 => true,
        1 => false,
        _ => return Err(Errno::EINVAL),
    };
    let flags = request.flags.get();
    if flags & !RegisterRequest2::USER_RMPP != 0 {
        return Err(Errno::EINVAL);
    }
    Ok(AgentRules {
        on_qp0,
        has_rmpp: request.rmpp_version != 0 && flags == 0,
        names_rmpp: request.rmpp_version != 0,
    })
}

/// The checks of the kernel's `ib_register_mad_agent`.
fn check_class(request: &RegisterRequest2, on_qp0: bool) -> Result<(), Errno> {
    if !matches!(request.rmpp_version, 0 | RMPP_VERSION) {
        return Err(Errno::EINVAL);
    }
    let class = MgmtClass::new(request.mgmt_class);
    if request.mgmt_class == 0 {
        let does_rmpp_itself = request.flags.get() & RegisterRequest2::USER_RMPP != 0;
        return if does_rmpp_itself {
            Err(Errno::EINVAL)
        } else {
            Ok(())
        };
    }
    let is_known = request.mgmt_class < CLASS_LIMIT || class == MgmtClass::SUBN_DIRECTED_ROUTE;
    let oui = request.oui.get();
    let fits = is_known
        && request.mgmt_class_version < VERSION_LIMIT
        && oui >> 24 == 0
        && (!class.is_vendor_oui() || oui != 0)
        && (request.rmpp_version == 0 || carries_rmpp(class))
        && class.is_smp() == on_qp0;
    fits.then_some(()).ok_or(Errno::EINVAL)
}

/// Whether messages of a class may be sent under RMPP (`ib_is_mad_class_rmpp`).
const fn carries_rmpp(class: MgmtClass) -> bool {
    const DEVICE_ADMINISTRATION: u8 = 0x10;
    const BOOT_INSTALLATION: u8 = 0x12;
    class.is_vendor_oui()
        || matches!(class, MgmtClass::SUBN_ADM | MgmtClass::DEV_MGT)
        || matches!(class.get(), DEVICE_ADMINISTRATION | BOOT_INSTALLATION)
}

/// Where the data behind a class's header starts in a MAD (`ib_get_mad_data_offset`).
pub(crate) fn data_offset(class: MgmtClass) -> usize {
    const DEVICE_HEADER_END: usize = 64;
    match segment_layout(class) {
        Some(layout) => RMPP_HEADER_END + layout.class_header,
        None if carries_rmpp(class) => DEVICE_HEADER_END,
        None => size_of::<MadHeader>(),
    }
}

const _: () = assert!(size_of::<Mad>() == MAD_SIZE);

#[cfg(test)]
mod tests {
    use ib_wire::mad::{AttributeId, Method};
    use zerocopy::IntoBytes;

    use super::*;

    fn request(class: u8) -> RegisterRequest2 {
        let class = MgmtClass::new(class);
        RegisterRequest2 {
            qpn: u32::from(!class.is_smp()).into(),
            mgmt_class: class.get(),
            mgmt_class_version: class.supported_version(),
            ..RegisterRequest2::default()
        }
    }

    fn registered(request: &RegisterRequest2) -> FileRules {
        let mut rules = FileRules::default();
        let (id, agent) = rules.check_registration(request).unwrap();
        rules.registered(id, agent, true);
        rules
    }

    fn written(class: MgmtClass, method: Method, len: usize) -> Vec<u8> {
        let mut bytes = UmadHeader::default().as_bytes().to_vec();
        let header = MadHeader::new(class, method, AttributeId::new(0x11));
        bytes.extend_from_slice(header.as_bytes());
        bytes.resize(HEADER_SIZE + len, 0);
        bytes
    }

    fn check(rules: &FileRules, bytes: &[u8]) -> Result<bool, Errno> {
        rules
            .check_write(bytes, bytes.len())
            .map(|shape| shape.is_rmpp)
    }

    #[test]
    fn registrations_that_the_kernel_refuses_are_refused() {
        let rules = FileRules::default();
        let refused = |change: &dyn Fn(&mut RegisterRequest2), class: u8| {
            let mut request = request(class);
            change(&mut request);
            rules.check_registration(&request)
        };
        assert!(refused(&|_| {}, 0x03).is_ok());
        assert!(refused(&|_| {}, 0x81).is_ok());
        assert!(refused(&|r| r.oui = 0x1405.into(), 0x32).is_ok());
        assert!(refused(&|_| {}, 0).is_ok(), "an agent that only sends");
        let invalid = Err(Errno::EINVAL);
        assert_eq!(refused(&|r| r.qpn = 2.into(), 0x03), invalid);
        assert_eq!(refused(&|r| r.qpn = 0.into(), 0x03), invalid);
        assert_eq!(refused(&|r| r.qpn = 1.into(), 0x01), invalid);
        assert_eq!(refused(&|r| r.flags = 2.into(), 0x03), invalid);
        assert_eq!(refused(&|r| r.rmpp_version = 2, 0x03), invalid);
        assert_eq!(refused(&|r| r.rmpp_version = 1, 0x04), invalid);
        assert_eq!(refused(&|r| r.mgmt_class_version = 0x83, 0x03), invalid);
        assert_eq!(refused(&|_| {}, 0x32), invalid, "no vendor");
        assert_eq!(refused(&|r| r.oui = (1 << 24).into(), 0x32), invalid);
        assert_eq!(refused(&|_| {}, 0x50), invalid);
        assert_eq!(refused(&|r| r.flags = 1.into(), 0), invalid);
    }

    #[test]
    fn the_thirty_third_agent_has_no_number() {
        let mut rules = FileRules::default();
        for expected in 0..32 {
            let (id, agent) = rules.check_registration(&request(4)).unwrap();
            assert_eq!(id, expected);
            rules.registered(id, agent, false);
        }
        assert_eq!(rules.check_registration(&request(4)), Err(Errno::ENOMEM));
        rules.unregister(7).unwrap();
        assert_eq!(rules.unregister(7), Err(Errno::EINVAL));
        assert_eq!(rules.unregister(32), Err(Errno::EINVAL));
        assert_eq!(rules.check_registration(&request(4)).unwrap().0, 7);
    }

    #[test]
    fn pkey_indices_come_before_the_first_agent_or_with_its_second_form() {
        let mut rules = FileRules::default();
        assert_eq!(rules.header_size(), OLD_HEADER_SIZE);
        let (id, agent) = rules.check_registration(&request(4)).unwrap();
        rules.registered(id, agent, false);
        assert_eq!(rules.enable_pkey(), Err(Errno::EINVAL));
        assert_eq!(rules.header_size(), OLD_HEADER_SIZE);
        assert_eq!(registered(&request(4)).header_size(), HEADER_SIZE);
        let mut rules = FileRules::default();
        rules.enable_pkey().unwrap();
        assert_eq!(rules.header_size(), HEADER_SIZE);
    }

    #[test]
    fn a_write_needs_an_agent_and_the_headers_of_its_class() {
        let rules = registered(&request(3));
        let sa = MgmtClass::SUBN_ADM;
        let invalid = Err(Errno::EINVAL);
        assert_eq!(check(&rules, &written(sa, Method::GET, 256)), Ok(false));
        assert_eq!(check(&rules, &written(sa, Method::GET, 56)), Ok(false));
        assert_eq!(check(&rules, &written(sa, Method::GET, 55)), invalid);
        assert_eq!(check(&rules, &written(sa, Method::GET, 257)), invalid);
        assert_eq!(
            check(&rules, &written(MgmtClass::PERF, Method::GET, 36)),
            Ok(false)
        );
        assert_eq!(
            check(&rules, &written(MgmtClass::PERF, Method::GET, 35)),
            invalid
        );
        let smp = written(MgmtClass::SUBN_LID_ROUTED, Method::GET, 256);
        assert_eq!(check(&rules, &smp), Ok(false));
        assert_eq!(check(&registered(&request(1)), &smp), Ok(false));
        let other = written(MgmtClass::PERF, Method::GET, 256);
        assert_eq!(check(&registered(&request(1)), &other), invalid);
        let mut other = written(sa, Method::GET, 256);
        for (id, refused) in [(1, Errno::EIO), (31, Errno::EIO), (32, Errno::EINVAL)] {
            other[0] = id;
            assert_eq!(check(&rules, &other), Err(refused), "agent {id}");
        }
    }

    #[test]
    fn only_an_agent_with_rmpp_writes_more_than_a_mad() {
        let active = |method, len| {
            let mut bytes = written(MgmtClass::SUBN_ADM, method, len);
            bytes[HEADER_SIZE + 26] = 1;
            bytes
        };
        let plain = registered(&request(3));
        let long = active(Method::GET_TABLE_RESP, 1000);
        assert_eq!(check(&plain, &long), Err(Errno::EINVAL));
        let packet = active(Method::GET_TABLE_RESP, 256);
        assert_eq!(check(&plain, &packet), Ok(false));
        let rmpp = registered(&RegisterRequest2 {
            rmpp_version: 1,
            ..request(3)
        });
        assert_eq!(check(&rmpp, &long), Ok(true));
        assert_eq!(
            rmpp.check_write(&long, HEADER_SIZE + MAX_MESSAGE + 1),
            Err(Errno::EMSGSIZE)
        );
        let other = written(MgmtClass::PERF, Method::GET, 256);
        assert_eq!(check(&rmpp, &other), Err(Errno::EINVAL), "no RMPP there");
        let does_it_itself = registered(&RegisterRequest2 {
            rmpp_version: 1,
            flags: RegisterRequest2::USER_RMPP.into(),
            ..request(3)
        });
        assert_eq!(check(&does_it_itself, &packet), Ok(false));
        assert_eq!(check(&does_it_itself, &other), Err(Errno::EINVAL));
        let mut request = active(Method::GET_MULTI, 1000);
        assert_eq!(check(&rmpp, &request), Err(Errno::EINVAL), "no timeout");
        request[8] = 100;
        assert_eq!(check(&rmpp, &request), Ok(true));
    }
}
