//! The command register in guest memory.

use hca_api::{DmaFault, Hca};
use mlx4_defs::{Mailbox, Status, VHCR_SIZE, Vhcr};
use zerocopy::IntoBytes;

/// Where the result of a command goes in the register.
const OUT_PARAM: u64 = 0x10;
const STATUS: u64 = 0x1c;

/// What a command gives besides its status.
#[derive(Debug)]
pub(super) enum Output {
    /// Nothing.
    None,
    /// A number, in the register.
    Immediate(u64),
    /// A mailbox.
    Mailbox(Box<Mailbox>),
}

/// Copies the register out of the guest's memory, once.
///
/// # Errors
/// [`DmaFault`] if it is not there.
pub(super) fn fetch(hca: &dyn Hca, addr: u64) -> Result<Vhcr, DmaFault> {
    let mut bytes = [0; VHCR_SIZE];
    hca.dma_read(addr, &mut bytes)?;
    Ok(zerocopy::transmute!(bytes))
}

/// Copies the input mailbox out of the guest's memory, once.
///
/// # Errors
/// [`Status::BAD_PARAM`] if it is not there.
pub(super) fn fetch_mailbox(hca: &dyn Hca, vhcr: &Vhcr) -> Result<Box<Mailbox>, Status> {
    let mut mailbox = Box::<Mailbox>::default();
    hca.dma_read(mailbox_addr(vhcr.in_param.get()), mailbox.as_mut_bytes())
        .map_err(|_| Status::BAD_PARAM)?;
    Ok(mailbox)
}

/// Mailboxes are aligned; the PF does not look at the lowest bits of their addresses either
/// (`mlx4_master_process_vhcr`).
const fn mailbox_addr(param: u64) -> u64 {
    param & !0xff
}

/// Writes what came of a command back: the mailbox, the immediate result, and the status last.
///
/// # Errors
/// [`DmaFault`] if the register is not there any more. A missing mailbox is a status.
pub(super) fn finish(
    hca: &mut dyn Hca,
    addr: u64,
    vhcr: &Vhcr,
    outcome: Result<Output, Status>,
) -> Result<(), DmaFault> {
    let status = match outcome {
        Ok(Output::None) => Status::OK,
        Ok(Output::Immediate(value)) => {
            hca.dma_write(addr.wrapping_add(OUT_PARAM), &value.to_be_bytes())?;
            Status::OK
        }
        Ok(Output::Mailbox(mailbox)) => {
            let to = mailbox_addr(vhcr.out_param.get());
            match hca.dma_write(to, mailbox.as_bytes()) {
                Ok(()) => Status::OK,
                Err(_) => Status::BAD_PARAM,
            }
        }
        Err(status) => status,
    };
    hca.dma_write(addr.wrapping_add(STATUS), &[status.get()])
}
