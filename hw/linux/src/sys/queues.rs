//! Completion queues and queue pairs.

use std::io;
use std::ptr::{NonNull, null_mut, without_provenance_mut};
use std::sync::Arc;

use super::abi::{
    Atomic, Cq, Qp, QpAttr, QpCap, QpInitAttr, Rdma, RecvWr, RemoteWr, SendWr, Sge, Ud, Wc,
    attr_mask, opcode, send_flags,
};
use super::resources::{
    AddressHandle, Device, ProtectionDomain, User, Users, count, done, made, unsupported,
};
use super::shared_receives::SharedQueue;

/// A completion queue.
#[derive(Debug)]
pub(crate) struct CompletionQueue {
    cq: NonNull<Cq>,
    device: Arc<Device>,
    pub(crate) users: Users,
}

// SAFETY: as for the device.
unsafe impl Send for CompletionQueue {}
// SAFETY: as for the device.
unsafe impl Sync for CompletionQueue {}

impl CompletionQueue {
    /// Makes a queue, whose events name it by a number.
    pub(crate) fn new(device: &Arc<Device>, entries: i32, number: u32) -> io::Result<Self> {
        let name = without_provenance_mut(number as usize);
        let (library, context) = (device.library, device.context.as_ptr());
        let channel = device.channel.as_ptr();
        // SAFETY: the queue keeps the device, and with it the channel.
        let cq = made(unsafe { (library.ibv_create_cq)(context, entries, name, channel, 0) })?;
        Ok(Self {
            cq,
            device: device.clone(),
            users: Users::default(),
        })
    }

    pub(crate) fn resize(&self, entries: i32) -> io::Result<()> {
        // SAFETY: the queue is there.
        done(unsafe { (self.device.library.ibv_resize_cq)(self.cq.as_ptr(), entries) })
    }

    /// Takes completions, and returns how many.
    pub(crate) fn poll(&self, out: &mut [Wc]) -> io::Result<usize> {
        let room = i32::try_from(out.len()).unwrap_or(i32::MAX);
        // SAFETY: the device is open.
        let poll = unsafe { self.device.context.as_ref() }.ops.poll_cq;
        let poll = poll.ok_or_else(unsupported)?;
        // SAFETY: there is room for so many completions.
        let count = unsafe { poll(self.cq.as_ptr().cast(), room, out.as_mut_ptr()) };
        usize::try_from(count).map_err(|_| io::ErrorKind::Other.into())
    }

    /// Asks for an event at the next completion.
    pub(crate) fn arm(&self, is_solicited_alone: bool) -> io::Result<()> {
        // SAFETY: the device is open.
        let arm = unsafe { self.device.context.as_ref() }.ops.req_notify_cq;
        let arm = arm.ok_or_else(unsupported)?;
        // SAFETY: the queue is there.
        done(unsafe { arm(self.cq.as_ptr().cast(), is_solicited_alone.into()) })
    }
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        // SAFETY: queue pairs keep their queues, so none uses it. The library waits until events that were taken are acknowledged, and
        // the device does both in one call.
        unsafe { (self.device.library.ibv_destroy_cq)(self.cq.as_ptr()) };
    }
}

/// The place of a request outside this process.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Remote<'a> {
    /// The peer of a connection.
    Peer,
    /// Memory of the peer: address and key.
    Memory(u64, u32),
    /// A number in memory of the peer: address and key, the number to compare with or to add, and the one to store.
    Number(u64, u32, u64, u64),
    /// A queue pair: its address, number and Q_Key.
    Datagram(&'a AddressHandle, u32, u32),
}

/// A send request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request<'a> {
    pub(crate) wr_id: u64,
    /// Of `enum ibv_wr_opcode`.
    pub(crate) opcode: u32,
    /// Of `enum ibv_send_flags`.
    pub(crate) flags: u32,
    /// Immediate data in the byte order of the network, or the key to invalidate.
    pub(crate) immediate: u32,
    /// Bytes of the message that are copied now, in place of a list.
    pub(crate) inline: Option<&'a [u8]>,
    pub(crate) list: &'a [Sge],
    pub(crate) remote: Remote<'a>,
}

/// Specification of a queue pair.
#[derive(Debug)]
pub(crate) struct Parts {
    pub(crate) pd: Arc<ProtectionDomain>,
    pub(crate) send_cq: Arc<CompletionQueue>,
    pub(crate) recv_cq: Arc<CompletionQueue>,
    pub(crate) srq: Option<Arc<SharedQueue>>,
}

impl Parts {
    /// Returns a user of each part.
    pub(crate) fn users(&self) -> Vec<User> {
        let queues = [&self.send_cq.users, &self.recv_cq.users];
        let srq = self.srq.as_ref().map(|srq| &srq.users);
        let all = queues.into_iter().chain(srq).chain([&self.pd.users]);
        all.map(Users::add).collect()
    }
}

/// A queue pair.
#[derive(Debug)]
pub(crate) struct QueuePair {
    qp: NonNull<Qp>,
    parts: Parts,
}

// SAFETY: as for the device.
unsafe impl Send for QueuePair {}
// SAFETY: as for the device.
unsafe impl Sync for QueuePair {}

impl QueuePair {
    /// Makes a queue pair of a type of `enum ibv_qp_type`, whose events name it by a number. Returns the sizes that it got, too.
    pub(crate) fn new(
        parts: Parts,
        qp_type: u32,
        (cap, signals_all): (QpCap, bool),
        number: u32,
    ) -> io::Result<(Self, QpCap)> {
        let mut init = QpInitAttr {
            qp_context: without_provenance_mut(number as usize),
            send_cq: parts.send_cq.cq.as_ptr(),
            recv_cq: parts.recv_cq.cq.as_ptr(),
            srq: parts
                .srq
                .as_ref()
                .map_or(null_mut(), |srq| srq.srq.as_ptr()),
            cap,
            qp_type,
            sq_sig_all: signals_all.into(),
        };
        let library = parts.pd.device.library;
        // SAFETY: the queue pair keeps its domain and queues; the library writes the sizes.
        let qp = made(unsafe { (library.ibv_create_qp)(parts.pd.as_ptr(), &raw mut init) })?;
        Ok((Self { qp, parts }, init.cap))
    }

    fn device(&self) -> &Device {
        &self.parts.pd.device
    }

    pub(crate) fn number(&self) -> u32 {
        // SAFETY: the library made it, and it is there.
        unsafe { self.qp.as_ref() }.qp_num
    }

    /// Changes the attributes of a mask of `enum ibv_qp_attr_mask`.
    pub(crate) fn modify(&self, mut attributes: QpAttr, mask: i32) -> io::Result<()> {
        let library = self.device().library;
        // SAFETY: the library reads the attributes.
        done(unsafe { (library.ibv_modify_qp)(self.qp.as_ptr(), &raw mut attributes, mask) })
    }

    pub(crate) fn query(&self) -> io::Result<QpAttr> {
        let mut attributes = QpAttr::default();
        let mut init = QpInitAttr {
            qp_context: null_mut(),
            send_cq: null_mut(),
            recv_cq: null_mut(),
            srq: null_mut(),
            cap: QpCap::default(),
            qp_type: 0,
            sq_sig_all: 0,
        };
        let (library, mask) = (self.device().library, attr_mask::STATE | attr_mask::CAP);
        // SAFETY: the library writes both.
        done(unsafe {
            (library.ibv_query_qp)(self.qp.as_ptr(), &raw mut attributes, mask, &raw mut init)
        })?;
        Ok(attributes)
    }

    /// Posts a send.
    ///
    /// # Errors
    /// Errors of the provider: ENOMEM if the queue is full. EINVAL for inline bytes of a request that brings bytes here.
    pub(crate) fn post_send(&self, request: &Request<'_>) -> io::Result<()> {
        // SAFETY: the device is open.
        let post = unsafe { self.device().context.as_ref() }.ops.post_send;
        let post = post.ok_or_else(unsupported)?;
        let brings = [
            opcode::RDMA_READ,
            opcode::ATOMIC_CMP_AND_SWP,
            opcode::ATOMIC_FETCH_AND_ADD,
        ];
        let mut inline = [Sge {
            addr: 0,
            length: 0,
            lkey: 0,
        }];
        let mut flags = request.flags & !send_flags::INLINE;
        let list = match request.inline {
            Some(bytes) => {
                let length = u32::try_from(bytes.len());
                let length = length.map_err(|_| io::ErrorKind::InvalidInput)?;
                if brings.contains(&request.opcode) {
                    return Err(io::ErrorKind::InvalidInput.into());
                }
                flags |= send_flags::INLINE;
                let [only] = &mut inline;
                (only.addr, only.length) = (bytes.as_ptr().expose_provenance() as u64, length);
                &inline[..]
            }
            None => request.list,
        };
        let wr = match request.remote {
            Remote::Peer => RemoteWr { none: [0; 4] },
            Remote::Memory(remote_addr, rkey) => RemoteWr {
                rdma: Rdma { remote_addr, rkey },
            },
            Remote::Number(remote_addr, rkey, compare_add, swap) => RemoteWr {
                atomic: Atomic {
                    remote_addr,
                    compare_add,
                    swap,
                    rkey,
                },
            },
            Remote::Datagram(address, remote_qpn, remote_qkey) => RemoteWr {
                ud: Ud {
                    ah: address.ah.as_ptr(),
                    remote_qpn,
                    remote_qkey,
                },
            },
        };
        let mut wr = SendWr {
            wr_id: request.wr_id,
            next: null_mut(),
            sg_list: list.as_ptr().cast_mut(),
            num_sge: count(list)?,
            opcode: request.opcode,
            send_flags: flags,
            imm_data: request.immediate,
            wr,
            qp_type: 0,
            bind_mw: [0; 6],
        };
        let mut bad = null_mut();
        // SAFETY: the provider reads request, list and inline bytes during the call. Memory that a list names is reached by keys of
        // regions, which keep it mapped.
        done(unsafe { post(self.qp.as_ptr(), &raw mut wr, &raw mut bad) })
    }

    /// Posts a receive.
    ///
    /// # Errors
    /// As [`Self::post_send`].
    pub(crate) fn post_recv(&self, wr_id: u64, list: &[Sge]) -> io::Result<()> {
        // SAFETY: the device is open.
        let post = unsafe { self.device().context.as_ref() }.ops.post_recv;
        let post = post.ok_or_else(unsupported)?;
        let mut wr = RecvWr {
            wr_id,
            next: null_mut(),
            sg_list: list.as_ptr().cast_mut(),
            num_sge: count(list)?,
        };
        let mut bad = null_mut();
        // SAFETY: as for sends.
        done(unsafe { post(self.qp.as_ptr(), &raw mut wr, &raw mut bad) })
    }

    pub(crate) fn attach(&self, mgid: &[u8; 16], mlid: u16) -> io::Result<()> {
        let library = self.device().library;
        // SAFETY: the library reads the GID.
        done(unsafe { (library.ibv_attach_mcast)(self.qp.as_ptr(), mgid, mlid) })
    }

    pub(crate) fn detach(&self, mgid: &[u8; 16], mlid: u16) -> io::Result<()> {
        let library = self.device().library;
        // SAFETY: the library reads the GID.
        done(unsafe { (library.ibv_detach_mcast)(self.qp.as_ptr(), mgid, mlid) })
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        // SAFETY: it is destroyed once. The library waits for events as it does for completion queues.
        unsafe { (self.device().library.ibv_destroy_qp)(self.qp.as_ptr()) };
    }
}
