//! A device without a host, for tests.

use core::ffi::{c_int, c_void};
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

use super::abi::{
    CompChannel, Context, Cq, DeviceAttr, Mr, Opaque, PortAttr, Qp, QpAttr, QpInitAttr, Srq,
    SrqInitAttr, Wc,
};
use super::library::Library;
use super::resources::Device;

static LIBRARY: Library = Library {
    ibv_close_device: close_device,
    ibv_query_device: query_device,
    ibv_query_port: query_port,
    ibv_alloc_pd: alloc_pd,
    ibv_dealloc_pd: dealloc_pd,
    ibv_reg_mr_iova: reg_mr_iova,
    ibv_dereg_mr: dereg_mr,
    ibv_destroy_comp_channel: destroy_comp_channel,
    ibv_create_cq: create_cq,
    ibv_destroy_cq: destroy_cq,
    ibv_create_srq: create_srq,
    ibv_destroy_srq: destroy_srq,
    ibv_create_qp: create_qp,
    ibv_modify_qp: modify_qp,
    ibv_destroy_qp: destroy_qp,
    ..Library::of_tests()
};

/// A device. The library sees its context alone, and its protection domains are pointers to it.
#[repr(C)]
struct Fake {
    context: Context,
    calls: Mutex<Vec<&'static str>>,
    refuses_changes: AtomicBool,
}

impl Device {
    /// Returns a device with protection domains, regions, completion and shared receive queues, and queue pairs. Nothing completes.
    pub(crate) fn fake() -> Self {
        // SAFETY: all fields are numbers, pointers or functions that may be missing, for which zero is a value.
        let mut context: Context = unsafe { core::mem::zeroed() };
        context.ops.poll_cq = Some(poll_cq);
        let fake = Box::leak(Box::new(Fake {
            context,
            calls: Mutex::default(),
            refuses_changes: AtomicBool::default(),
        }));
        Self {
            library: &LIBRARY,
            context: NonNull::from(fake).cast(),
            channel: NonNull::dangling(),
        }
    }

    /// Returns the calls that changed or destroyed something, in their order.
    pub(crate) fn calls(&self) -> Vec<&'static str> {
        let calls = of(self.context.as_ptr()).calls.lock();
        calls.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Refuses changes of queue pairs from now on.
    pub(crate) fn refuse_changes(&self) {
        let fake = of(self.context.as_ptr());
        fake.refuses_changes.store(true, Ordering::Relaxed);
    }
}

fn of<'a>(context: *mut Context) -> &'a Fake {
    // SAFETY: every context here is that of a device, which is never freed.
    unsafe { &*context.cast::<Fake>() }
}

/// Notes a call.
fn note(context: *mut Context, call: &'static str) -> c_int {
    let calls = of(context).calls.lock();
    calls.unwrap_or_else(PoisonError::into_inner).push(call);
    0
}

/// Returns a number that no other object has.
fn number() -> u32 {
    static NUMBERS: AtomicU32 = AtomicU32::new(0x100);

    NUMBERS.fetch_add(1, Ordering::Relaxed)
}

extern "C" fn close_device(_: *mut Context) -> c_int {
    0
}

extern "C" fn query_device(_: *mut Context, _: *mut DeviceAttr) -> c_int {
    0
}

extern "C" fn query_port(_: *mut Context, _: u8, _: *mut PortAttr) -> c_int {
    0
}

extern "C" fn destroy_comp_channel(_: *mut CompChannel) -> c_int {
    0
}

extern "C" fn alloc_pd(context: *mut Context) -> *mut Opaque {
    context.cast()
}

extern "C" fn dealloc_pd(pd: *mut Opaque) -> c_int {
    note(pd.cast(), "dealloc_pd")
}

extern "C" fn reg_mr_iova(
    pd: *mut Opaque,
    addr: *mut c_void,
    length: usize,
    _: u64,
    _: c_int,
) -> *mut Mr {
    let key = number();
    Box::into_raw(Box::new(Mr {
        context: pd.cast(),
        pd,
        addr,
        length,
        handle: 0,
        lkey: key,
        rkey: key,
    }))
}

extern "C" fn dereg_mr(mr: *mut Mr) -> c_int {
    // SAFETY: it was made above, and is destroyed once, as the objects below.
    let mr = unsafe { Box::from_raw(mr) };
    note(mr.context, "dereg_mr")
}

extern "C" fn create_cq(
    context: *mut Context,
    _: c_int,
    cq_context: *mut c_void,
    channel: *mut CompChannel,
    _: c_int,
) -> *mut Cq {
    Box::into_raw(Box::new(Cq {
        context,
        channel,
        cq_context,
    }))
}

extern "C" fn poll_cq(_: *mut Opaque, _: c_int, _: *mut Wc) -> c_int {
    0
}

extern "C" fn destroy_cq(cq: *mut Cq) -> c_int {
    // SAFETY: as for regions.
    let cq = unsafe { Box::from_raw(cq) };
    note(cq.context, "destroy_cq")
}

extern "C" fn create_srq(pd: *mut Opaque, _: *mut SrqInitAttr) -> *mut Srq {
    Box::into_raw(Box::new(Srq {
        context: pd.cast(),
        srq_context: null_mut(),
    }))
}

extern "C" fn destroy_srq(srq: *mut Srq) -> c_int {
    // SAFETY: as for regions.
    let srq = unsafe { Box::from_raw(srq) };
    note(srq.context, "destroy_srq")
}

extern "C" fn create_qp(pd: *mut Opaque, _: *mut QpInitAttr) -> *mut Qp {
    Box::into_raw(Box::new(Qp {
        context: pd.cast(),
        qp_context: null_mut(),
        pd,
        send_cq: null_mut(),
        recv_cq: null_mut(),
        srq: null_mut(),
        handle: 0,
        qp_num: number(),
    }))
}

extern "C" fn modify_qp(qp: *mut Qp, attributes: *mut QpAttr, _: c_int) -> c_int {
    // SAFETY: both are the caller's during the call.
    let (context, state) = unsafe { ((*qp).context, (*attributes).qp_state) };
    if of(context).refuses_changes.load(Ordering::Relaxed) {
        return libc::EIO;
    }
    note(context, if state == 0 { "reset_qp" } else { "modify_qp" })
}

extern "C" fn destroy_qp(qp: *mut Qp) -> c_int {
    // SAFETY: as for regions.
    let qp = unsafe { Box::from_raw(qp) };
    note(qp.context, "destroy_qp")
}
