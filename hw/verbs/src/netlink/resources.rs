//! Objects and counters of a device.

use hca_api::{MigrationState, QpAttributes, QpKind};
use ib_wire::Qpn;

use super::message::{Message, attribute};
use crate::view::{DeviceView, PortView, Resources, qp_state};

/// Objects in one message: programs have room for 8 KiB.
pub(super) const IN_MESSAGE: usize = 48;

/// A kind of objects that is shown one by one.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    QueuePairs,
    CompletionQueues,
    Domains,
}

/// Adds how many objects there are of each kind (`fill_res_info`).
pub(super) fn summary(message: Message, device: &DeviceView) -> Message {
    let is = &device.resources;
    let counts = [
        ("pd", is.pds),
        ("cq", is.cqs),
        ("qp", is.qps),
        ("cm_id", is.cm_ids),
        ("mr", is.mrs),
        ("ctx", is.contexts),
        ("srq", is.srqs),
    ];
    message
        .with_device(device)
        .with_table(attribute::RES_SUMMARY, |table| {
            counts.into_iter().fold(table, |table, (name, count)| {
                table.with_table(attribute::RES_SUMMARY_ENTRY, |entry| {
                    entry
                        .with_text(attribute::RES_SUMMARY_ENTRY_NAME, name)
                        .with_u64(attribute::RES_SUMMARY_ENTRY_CURR, count as u64)
                })
            })
        })
}

/// Returns the messages about the objects of a kind. `begin` begins one.
pub(super) fn objects(
    device: &DeviceView,
    kind: Kind,
    begin: impl Fn() -> Message,
) -> Vec<Message> {
    let is = &device.resources;
    let (table, entry) = match kind {
        Kind::QueuePairs => (attribute::RES_QP, attribute::RES_QP_ENTRY),
        Kind::CompletionQueues => (attribute::RES_CQ, attribute::RES_CQ_ENTRY),
        Kind::Domains => (attribute::RES_PD, attribute::RES_PD_ENTRY),
    };
    let entries: Vec<Message> = match kind {
        Kind::QueuePairs => is
            .first_qps
            .iter()
            .map(|qp| of_queue_pair(is, qp))
            .collect(),
        Kind::CompletionQueues => is
            .first_cqs
            .iter()
            .map(|cq| of_completion_queue(is, *cq))
            .collect(),
        Kind::Domains => is.first_pds.iter().map(|pd| of_domain(is, *pd)).collect(),
    };
    let messages = entries.chunks(IN_MESSAGE).map(|entries| {
        begin().with_device(device).with_table(table, |message| {
            entries
                .iter()
                .fold(message, |message, of| message.with(entry, &of.0))
        })
    });
    messages.collect()
}

fn begin(resources: &Resources) -> Message {
    let message = Message(Vec::new());
    match resources.pid {
        Some(pid) => message.with_u32(attribute::RES_PID, pid),
        None => message,
    }
}

/// As `fill_res_qp_entry_query`.
fn of_queue_pair(resources: &Resources, (number, is): &(Qpn, QpAttributes)) -> Message {
    let mut message = begin(resources).with_u32(attribute::RES_LQPN, number.get());
    if let Some(port) = is.port {
        message = message.with_u32(attribute::PORT_INDEX, port.0.into());
    }
    let kind = match is.kind {
        QpKind::Rc => 2,
        QpKind::Uc => 3,
        _ => 4,
    };
    if kind != 4 {
        let migration = match is.migration {
            MigrationState::Migrated => 0,
            MigrationState::Rearm => 1,
            MigrationState::Armed => 2,
        };
        message = message
            .with_u32(attribute::RES_RQPN, is.dest_qpn.get())
            .with_u32(attribute::RES_RQ_PSN, is.rq_psn.get())
            .with(attribute::RES_PATH_MIG_STATE, &[migration]);
    }
    message
        .with_u32(attribute::RES_SQ_PSN, is.sq_psn.get())
        .with(attribute::RES_TYPE, &[kind])
        .with(attribute::RES_STATE, &[qp_state(is.state)])
}

/// As `fill_res_cq_entry`.
fn of_completion_queue(
    resources: &Resources,
    (handle, entries, users): (u32, u32, u32),
) -> Message {
    begin(resources)
        .with_u32(attribute::RES_CQE, entries)
        .with_u64(attribute::RES_USECNT, users.into())
        .with_u32(attribute::RES_CQN, handle)
}

/// As `fill_res_pd_entry`.
fn of_domain(resources: &Resources, handle: u32) -> Message {
    begin(resources)
        .with_u64(attribute::RES_USECNT, 1)
        .with_u32(attribute::RES_PDN, handle)
}

/// Adds the counters of a port (`stat_get_doit_default_counter`).
pub(super) fn counters(message: Message, device: &DeviceView, port: &PortView) -> Message {
    message
        .with_device(device)
        .with_u32(attribute::PORT_INDEX, port.number.0.into())
        .with_table(attribute::STAT_HWCOUNTERS, |table| {
            port.hw_counters.iter().fold(table, |table, (name, value)| {
                table.with_table(attribute::STAT_HWCOUNTER_ENTRY, |entry| {
                    entry
                        .with_text(attribute::STAT_HWCOUNTER_ENTRY_NAME, name)
                        .with_u64(attribute::STAT_HWCOUNTER_ENTRY_VALUE, *value)
                })
            })
        })
}
